"""MIG on this node: partitions GPUs as the configuration says.

mig_plan      plans the steps from the present instances to the wanted ones; pure
partitioner   reads a GPU, plans, and executes the steps
"""
