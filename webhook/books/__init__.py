"""The books: keep the ledger true to the pods there are.

bookkeeping  pods and ledger → what to confirm, release and expire; pure
changes      which nodes have to be looked at again, and with which pods; pure
bookkeeper   writes that, one write a node
patience     confirmations wait for each other; pure
adopter      writes shares of living pods again that the ledger has lost
sightings    since when we have known of each reservation; pure
inspection   says what in the ledger makes no sense
"""
