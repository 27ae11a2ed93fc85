"""The agent as the kubelet's device plugin: registration, the kubelet's calls, and the answers to them.

plugins               one plugin per advertised resource
plugin_registration   registers a plugin with the kubelet, and again after the kubelet restarts
plugin_service        the gRPC service that the kubelet calls
device_answers        allocation of GPUs, MIG devices and replicas
share_answers         allocation of shares
share_start           work that waits until the pod of a share container is known
"""
