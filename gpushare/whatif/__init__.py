"""Whatif: the cluster in memory, to try changes on with the placement code itself.

world              GPUNodes, and the Nodes and pods that could be read
unavailable        nodes that take no pod with a share now
scheduler_scores   where kube-scheduler would put a pod without a share
unplaced           a pod as it was before placement, and as its owner recreates it

Pure: no I/O.
"""
