"""MPS on this node: a control daemon for each GPU that is shared by it, and what its clients are given.

limits       how much each share gets, and how many shares there can be
places       the files of a daemon: its pipe, its log, what says that it runs
steps        starting and stopping a daemon, as a list: pure
running      runs NVIDIA's own program, here or in the container of a keeper
supervisor   the process in that container
control      carries a command to a daemon, by that program
daemon       one daemon: started, kept running, stopped
daemons      those of all GPUs, as the parts of the agent want them
mps_part     the daemons as a part of setting up a GPU
"""
