"""GPU modes: what each GPU of a node is used for by its configuration, and the devices that the kubelet gets. Pure.

hardware_gpu    a GPU and the MIG devices on it, as the driver reports them
naming          the resource of each device, by MIG strategy and the admin's rules
sharing         which entry of the configuration shares which device; replicas
assignment      what one GPU is used for; equal assignments mean that nothing changes
mps_clients     how many processes can share a GPU by MPS
mode_plan       the assignment of every GPU of a node
contradiction   why a GPU in its current state does not match its assignment
offering        the devices of each resource, by the current assignments
"""
