"""The node agent: what GPUs there are, what they are used for, the kubelet's device plugin, and the arbiter of shares.

hardware/                  what the node has, from the driver, and which of it is not to be trusted
live/                      what each GPU is used for: chosen by the cluster, applied to GPUs that nobody uses
mig/, mps/                 how GPUs are set up for that
kubelet/, kubelet_api/     what the kubelet is told, what it tells, and what containers get by it
cdi/                       the devices described for container runtimes
allocation/                which devices a container gets, and how it is given them
gpunode_status, node_capacity, labels/, announcing, announcer   what the cluster is told
library, old_libraries   what share containers get mounted, and what nobody has any more
refused_libraries        which pods have a library that the arbiter does not understand
allocatable              how much of our resources the node has, as scheduler and kubelet count it
arbiter/                   who may launch now, and how much memory is left, on this node
audit/                     who runs without limits or beyond them, and what contexts take
metrics, share_figures, holders, peaks   what Prometheus is told; the most that shares have used
node_pods                                the pods of this node
node_view, agent                         all of it wired together
settings, without_driver, __main__
offer, records, whole_file   values that are followed; values on disk, and files that are there whole or not at all
"""
