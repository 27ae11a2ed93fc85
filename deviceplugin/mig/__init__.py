"""MIG on this node: GPUs are cut as the config says.

instance      what there is on a GPU, as the driver says
identity      which instance of which GPU a MIG device is
mig_plan      from what there is to what is wanted: a pure decision, as steps
partitioner   reads, plans and does it, one step after the other
"""
