"""The kubelet's questions before a container starts: preferred devices, permission, and what the container gets.

preference   GetPreferredAllocation, and the check of an Allocate request
greedy       the best shared devices, by how many of each GPU's ids are allocated
aligned      the best whole GPUs, by how closely they are connected
answer       a container's environment, mounts, device nodes and CDI devices
cdi          CDI device names
"""
