"""The agent as the kubelet's device plugin: what it is told, what it asks, and what it tells.

advertisement         GPUs to the devices that the kubelet counts
plugins               a plugin for each resource, as many as are advertised
plugin_registration   one plugin, registered again whenever the kubelet forgets
plugin_service        the kubelet's calls
stale_devices           what a kubelet that starts counts for pods that are no more
withdrawal            how a device leaves the kubelet's list
share_answers         what containers of shares get
device_answers        what containers of GPUs, MIG devices and replicas get
pod_resources         who holds what
"""
