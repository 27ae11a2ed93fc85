"""MPS on this node: a control daemon for each GPU in mode mps, and the limits of its clients.

steps          a daemon's files, its clients' limits, and the steps that start and stop it; pure
pipe           a daemon's pipe directory, where clients write, and the daemon's process
supervisor     runs NVIDIA's program, here or through the keeper: a process in another container
sm_partitions  the static SM partitions of a GPU, and which share has which
shares         the daemons of GPUs whose shares have the isolation mps
daemon         the daemon of one GPU: started, supervised, stopped
daemons        the daemons of the node, by GPU
"""
