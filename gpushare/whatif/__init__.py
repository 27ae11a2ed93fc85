"""Whatif: the cluster in memory, to try changes on with the placement code itself.

world               GPUNodes, and the Nodes and pods that could be read
unavailable_nodes   nodes that take no new pods with a share
unplaced            a pod as it was before placement, and as its owner recreates it

Pure: no I/O.
"""
