"""Derives the use of each GPU, and what the kubelet is offered, from a configuration and the GPUs of a node.

hardware_gpu    a GPU and its MIG devices, as the driver has them
naming          the resource of each device, by MIG strategy and the administrator's rules
sharing         which entry of the configuration shares a device; replicas
assignment      the use of one GPU; equal assignments mean that nothing changes
mps_clients     how many processes can share a GPU by MPS
mode_plan       the assignment of every GPU of a node
contradiction   why a GPU, as it is, cannot be used as assigned
offering        the devices of each resource, from the assignments in force
"""
