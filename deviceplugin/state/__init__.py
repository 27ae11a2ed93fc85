"""The agent's shared values: facts that its components publish, follow and compare. Nothing here starts a loop.

node_state     observable values of the node, and the values of its MIG devices
gpunode_copy   this node's GPUNode, and Events about it and its pods
advertisement  how much the node can give, as the devices that the kubelet counts; pure
pod_resources  the devices of each container, from the kubelet, and the users of each GPU
"""
