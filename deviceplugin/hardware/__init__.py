"""The node's GPUs as the driver reports them, watched continuously.

nvml, nvml_mig, nvml_topology, nvml_events   the driver's functions; with nvml_call, the only files that import pynvml
nvml_call                                    one call of NVML, and PCI addresses
driver                                       driver calls for the event loop, in a thread
observation                                  the loop that reads the GPUs and publishes them
inventory                                    the GPUs and conditions of the GPUNode
discovery                                    the GPUs as configurations see them, and their device nodes
xid, gpu_health                              which GPUs are unhealthy and until when; kept on disk
"""
