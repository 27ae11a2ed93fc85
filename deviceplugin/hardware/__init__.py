"""The node's GPUs as the driver reports them, watched continuously, and their MIG devices.

nvml, nvml_mig, nvml_topology, nvml_events   the driver's functions; with nvml_call, the only files that import pynvml
nvml_limits                                  likewise: memory limits for cgroups, and whether the driver keeps them
nvml_call                                    one call of NVML, and PCI addresses
observation                                  the loop that reads the GPUs and publishes them
inventory                                    which GPUs there are, and how configurations see them
gpu_health                                   which GPUs are unhealthy and until when; kept on disk
partitioner                                  changes a GPU's MIG devices
"""
