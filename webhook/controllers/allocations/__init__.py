"""Allocations follow their pods.

due_changes            pods and ledger → what to confirm, release and expire, and when to write it; pure
allocation_controller  asks the API server about doubtful pods, writes each node once, and inspects the ledger
"""
