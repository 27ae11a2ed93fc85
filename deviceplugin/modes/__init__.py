"""Brings each GPU to its configured mode as soon as it is unused.

cluster_config     the Node's label and the ConfigMap, watched
desired_config     which configuration applies, and what it means for each GPU
gpu_users          who is using a GPU
transition         which GPUs to close, repair and change next; pure
setup              sets GPUs up, and repairs or quarantines GPUs that another program has changed
setup_parts        compute mode, MIG, time slices, MPS daemons
mode_checkpoint    the modes in force, on disk
published          what other components see of the modes; pure
mode_reconciler    the loop
"""
