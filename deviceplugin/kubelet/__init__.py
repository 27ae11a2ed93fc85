"""The agent as the kubelet's device plugin: registration, the kubelet's calls, and the answers to them.

plugin_registration  one plugin per resource, registered again after the kubelet restarts
plugin_service       the gRPC service that the kubelet calls
device_answers       allocation of GPUs, MIG devices and replicas
share_answers        allocation of shares, and what waits until the container's pod is known
"""
