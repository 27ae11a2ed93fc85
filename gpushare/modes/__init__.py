"""Derives the use of each GPU, and what the kubelet is offered, from a configuration and the GPUs of a node.

hardware_gpu       a GPU and its MIG devices, as the driver has them
device_resources   the resource of each device, and which entry of the configuration shares it
assignment         the use of one GPU, why it cannot be used so as it is, and the devices that it offers
mode_plan          the assignment of every GPU of a node
"""
