"""Allocations follow their pods.

due_changes            pods and ledger → what to confirm, release and let lapse; pure
confirm_batcher        confirmations wait for each other, so that those of a burst share one write; pure
allocation_controller  asks the API server about what is in doubt, and writes each node once
"""
