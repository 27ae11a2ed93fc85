"""The kubelet's questions before a container starts: preferred devices, permission, and what the container gets.

preference  GetPreferredAllocation, the best shared devices, and the check of an Allocate request
aligned     the best whole GPUs, by how closely they are connected
answer      a container's environment, mounts, device nodes and CDI devices
"""
