"""The node agent: what GPUs there are, what they are used for, the kubelet's device plugin, and the arbiter of shares.

hardware/                  what the node has, from the driver, and which of it is not to be trusted
live/                      what each GPU is used for: chosen by the cluster, applied to GPUs that nobody uses
mig/, mps/                 how GPUs are set up for that
kubelet/, kubelet_api/     what the kubelet is told, what it tells, and what containers get by it
cdi/                       the devices described for container runtimes
allocation/                which devices a container gets, and how it is given them
gpunode_status, node_capacity, labels/, announcing   what the cluster is told
library                    what share containers get mounted
slack                      what pods that were made smaller still count for
peaks                      the most that shares have used
arbiter/                   who holds how much memory, per process, on this node
node_view, agent           all of it wired together
metrics, settings, __main__
offer, records             values that are followed, and values on disk
"""
