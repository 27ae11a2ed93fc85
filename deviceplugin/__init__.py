"""The node agent: what GPUs there are, what they are used for, the kubelet's device plugin, and the arbiter of shares.

nvml, nvml_mig, driver, observation, cards   what the node has, from the driver
xid, health, faults, announcing   which of it is not to be trusted, until when, and who is told
live/                      what each GPU is used for: chosen by the cluster, applied to GPUs that nobody uses
mig/, mps/                 how GPUs are set up for that
gpunode_status, node_capacity, labels/   what the cluster is told
advertisement, plugins, registration, service, kubelet_api   what the kubelet is told, and how
share_answers, device_answers, allocation/, device_nodes     what containers get
pod_resources              what containers have
library                    what share containers get mounted
arbiter/                   who holds how much memory, per process, on this node
node_view, agent           all of it wired together
metrics, settings, __main__
"""
