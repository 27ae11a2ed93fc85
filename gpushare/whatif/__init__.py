"""Whatif: the cluster in memory, to try changes on with the placement code itself. Pure: no I/O.

world               GPUNodes, and the Nodes and pods that could be read; pods as they were before placement
node_demand         how many new nodes the waiting pods need
unavailable_nodes   nodes that take no new pods with a share
"""
