"""MIG devices for shares: cut when the ledger places a share with the isolation mig, and destroyed after it.

plan    what to change on a GPU, and the record of what the agent has cut; pure
shares  cuts, proves and merges, GPU by GPU
"""
