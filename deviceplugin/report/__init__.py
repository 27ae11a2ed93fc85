"""Reports the node's state to the cluster and to Prometheus.

gpunode_status     writes the status of the GPUNode
node_capacity      writes the Node's capacity of GPU memory
announcements      Events about GPUs whose health changes, and about pods with an outdated library
device_holders     the containers that have devices of GPUs
agent_metrics      the Prometheus metrics
share_metrics      the metrics of shares and containers; pure
share_peaks        the peak usage of shares, kept on disk
"""
