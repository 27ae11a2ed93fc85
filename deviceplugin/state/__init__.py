"""The agent's shared values: facts that its components publish, follow and compare. Nothing here starts a loop.

node_state          the node's values, and which component publishes each
offer               observable values: how they are published and followed
wake                the events that wake the reconcile loops
gpunode_copy        this node's GPUNode
node_events         Events about the GPUNode and pods
advertisement       the devices that the kubelet counts; pure
allocatable         how much the node can give
gpu_usage           the users of each GPU; pure
mig_instance        MIG mode, instances and devices of a GPU
pod_resources       the kubelet's pod-resources API: which container has which devices
kubelet_checkpoint  the same from the kubelet's checkpoint file
"""
