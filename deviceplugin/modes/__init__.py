"""Brings each GPU to the mode that the configuration wants, as soon as nobody uses it.

cluster_config, desired_config, choosing   which configuration that is, and what it says; what cannot be is told
gpu_users, gpu_usage              who uses a GPU
configured_gpus                   which GPU a configuration means where one is gone; pure
adopting                          what a GPU is used for of which nothing is known; pure
transition                        what is to be closed, set right and changed next; pure
setup, mig_part, compute_part     what has to be done to a GPU for that
entering                          whether it was done
righting                          which GPUs somebody else has changed, and that this is undone
mode_checkpoint                   what is in force, on disk
presenting, statement             the same for those who follow it; pure
node_state                        what others follow: the GPUs, their modes, what they give
mode_reconciler                   the loop
"""
