"""The GPUs as the driver has them, watched all the time.

nvml, nvml_mig, nvml_topology, nvml_events   what the driver says and does, each call of it by nvml_call: the only
                                             files that import pynvml
driver                                       the same for a program that must not wait
observation                                  the loop that looks, and publishes what there is
inventory                                    the GPUs and conditions of the GPUNode
discovery                                    the GPUs as configurations look at them: with MIG, and with what tells
                                             models apart
xid, health, faults                          what is not to be trusted, until when, and that on disk
device_nodes, pci                            device files and addresses
"""
