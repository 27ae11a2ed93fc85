"""Brings each GPU to its configured mode as soon as it is unused.

desired_config     which configuration applies, and what it means for each GPU
gpu_users          who is using a GPU
transition         which GPUs to close, repair and change next, and what other components see; pure
setup              sets GPUs up, and repairs or quarantines GPUs that another program has changed
mode_checkpoint    the modes in force, on disk
mode_reconciler    the loop
"""
