"""From a configuration and the GPUs of a node to what each GPU is used for, and what the kubelet is told of it.

hardware_gpu    a GPU and the MIG devices on it, as the driver has them
naming          which resource each device belongs to, by MIG strategy and the admin's rules
sharing         which device is shared by which entry of the configuration; replicas
assignment      what one GPU is used for; equal assignments mean that nothing changes
mps_clients     how many processes can share a GPU by MPS
mode_plan       the assignment of every GPU of a node
contradiction   why a GPU, as it is, cannot be used as it is assigned
offering        the devices of each resource, from the assignments in force
"""
