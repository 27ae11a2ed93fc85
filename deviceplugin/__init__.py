"""The node agent: the kubelet's device plugins, the modes of the GPUs, the reports to the cluster, and the arbiter.

agent                      the process: what starts in which order
wiring/                    builds the agent's parts
report/                    the GPUNode's status, Events, metrics
kubelet/                   one device plugin per resource, and its answers
modes/                     brings each unused GPU to its configured mode
audit/                     finds processes without limits, and measures contexts
labels/                    the Node's labels
injection/                 how containers get devices on this node, and whether they did
mig/, mps/                 partitions a GPU; runs its MPS daemon
link/                      the agent's end of the connection to the arbiter
hardware/                  the GPUs and their health, from NVML
arbiter/                   a process of its own: who may launch now, and how much memory is left
cdi/, allocation/          CDI specs; which devices a container gets, and with which mounts
denial/                    has the kernel deny the GPUs to unregistered processes
state/                     the values that the agent's parts share
host/, disk/, kubelet_api/ the kernel's processes and cgroups; files; the kubelet's gRPC API
graceful_stop, without_driver, node_pods, agent_settings, __main__
"""
