"""The node agent: the kubelet's device plugins, the modes of the GPUs, the reports to the cluster, and the arbiter.

agent                      the process: starts everything in order
wiring/                    builds the agent's parts
report/                    the GPUNode's status, Events, metrics
kubelet/                   one device plugin per resource, and its answers
modes/                     brings each unused GPU to its configured mode
audit/                     finds processes without limits, and measures contexts
labels/                    the Node's labels
injection/                 how containers on this node get devices, whether they got them, and CDI specs
mig/, mps/                 partitions a GPU; runs its MPS daemon
link/                      the agent's end of the connection to the arbiter
hardware/                  the GPUs and their health, from NVML
arbiter/                   a separate process: who may launch now, and how much memory is left
allocation/                which devices a container gets, and with which mounts
denial/                    makes the kernel deny the GPUs to unregistered processes
state/                     the values that the agent's parts share
host/, kubelet_api/        the kernel's processes and cgroups, and files; the kubelet's gRPC API
node_pods                  the pods of this node
graceful_stop              what happens before the agent stops
without_driver             waits for the driver on a node that has none yet
agent_settings, __main__   flags and environment; the entry point
"""
