"""The node agent: the kubelet's device plugins, the modes of the GPUs, the reports to the cluster, and the arbiter.

agent                      the process: waits for the driver, starts everything in order, stops gracefully
node_parts, agent_parts    build the agent's parts
report/                    the GPUNode's status, the Node's labels, Events, metrics
kubelet/                   one device plugin per resource, and its answers
modes/                     brings each unused GPU to its configured mode
audit/                     finds processes without limits, and measures contexts
injection/                 how containers on this node get devices, whether they got them, and CDI specs
mps/                       runs the MPS daemon of a GPU
link/                      the agent's end of the connection to the arbiter
hardware/                  the GPUs, their health and their MIG devices, from NVML
arbiter/                   a separate process: who may launch now, and how much memory is left
allocation/                which devices a container gets, and with which mounts
denial/                    makes the kernel deny the GPUs to unregistered processes
cluster_objects            live copies of the node's pods, its Node and the ConfigMap
agent_settings, __main__   flags and environment; the entry point
state/                     the values that the agent's parts share
host/, kubelet_api/        the kernel's processes and cgroups, and files; the kubelet's gRPC API
"""
