"""What the cluster is told of a node, and what Prometheus is.

gpunode_copy, gpunode_status        the GPUNode: as last seen, and the status that is written
node_capacity, allocatable          how much of our resources the node has, as scheduler and kubelet count it
announcing                          Events about the GPUNode and pods of the node
refused_libraries                   which pods have a library that the arbiter does not understand
agent_metrics                       the metrics, of what the others say:
charges, device_holders             who holds how much of a GPU
share_figures, share_peaks          what shares use, and the most that they have used
"""
