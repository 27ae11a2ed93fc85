"""The books: keep the ledger true to the pods there are.

due_changes             pods and ledger → what to confirm, release and expire; pure
touched_nodes           which nodes have to be looked at again, and with which pods; pure
allocation_controller   writes that, one write a node
confirm_batcher         confirmations wait for each other; pure
restorer                writes shares of living pods again that the ledger has lost
first_seen              since when we have known of each reservation; pure
inspection              says what in the ledger is invalid
"""
