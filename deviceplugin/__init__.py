"""The node agent: what GPUs there are, what they are used for, the kubelet's device plugin, and the arbiter of shares.

hardware/                  what the node has, from the driver, and which of it is not to be trusted
live/                      what each GPU is used for: chosen by the cluster, applied to GPUs that nobody uses
mig/, mps/                 how GPUs are set up for that
kubelet/, kubelet_api/     what the kubelet is told, what it tells, and what containers get by it
cdi/                       the devices described for container runtimes, and where the driver's files are
allocation/                which devices a container gets, and how it is given them
injection/                 by which way a container comes by its devices, and whether it did
report/                    what the cluster and Prometheus are told
labels/                    what the Node is labelled with
disk/                      what is on the host's disk: libraries for share containers, files for the next agent
arbiter/                   who may launch now, and how much memory is left, on this node
link/                      the agent's end of the channel to it
audit/                     who runs without limits or beyond them, and what contexts take
denial/                    has the kernel keep unregistered processes from the GPU
agent                      the order in which all of it is started, and what readiness means
agent_parts                all of it put together; offer, wake, live.node_state: what goes from part to part
node_pods                  the pods of this node
agent_settings, without_driver, __main__   settings, the driver and the library for a process
"""
