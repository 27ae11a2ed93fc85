"""MPS on this node: a control daemon for each GPU in mode mps, and the limits of its clients.

limits         the limits of each replica, and how many a GPU takes; pure
daemon_files   a daemon's files, and the process in its PID file
steps          starting and stopping a daemon, as lists of steps; pure
control        runs NVIDIA's program, here or through the keeper
supervisor     the keeper: a process in another container that runs the program
daemon         one daemon: started, supervised, stopped
daemons        all daemons of the node
"""
