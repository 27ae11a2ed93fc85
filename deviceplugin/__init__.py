"""The node agent: what GPUs there are, the kubelet's device plugin, and the arbiter of who may use how much.

nvml, inventory, health    what the node has, from the driver
gpunode_status, node_capacity   what the cluster is told of it
advertisement, service, registration, kubelet_api   what the kubelet is told, and what it is answered
library                    what share containers get mounted
arbiter/                   who holds how much memory, per process, on this node
metrics, settings, __main__
"""
