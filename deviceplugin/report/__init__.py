"""Reports the node's state to the cluster and to Prometheus.

gpunode_status   writes the status of the GPUNode
node_writers     write the Node's labels and its capacity of GPU memory, and remove its start-up taint
gpu_labels       the labels that describe the GPUs; pure
announcements    Events about GPUs whose health changes, and about pods with an outdated library
agent_metrics    the Prometheus metrics
share_metrics    the metrics of shares and of containers with devices
share_peaks      the peak usage of shares, kept on disk
"""
