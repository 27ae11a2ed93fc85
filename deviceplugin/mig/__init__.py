"""MIG devices for shares: cut when the ledger places a share with the isolation mig, and destroyed after it.

cut_plan     what to change on a GPU, and the record of what the agent has cut; pure
mig_devices  cuts, proves and merges, GPU by GPU
"""
