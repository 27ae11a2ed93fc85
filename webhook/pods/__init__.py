"""Pods: what one asks for, why it is denied, and how it is rewritten. Pure.

structure         whether what was sent is a pod at all
validation        pod → why it is denied, as a sentence with a remedy
mutation          pod and placement → the rewritten pod, and the patch that makes it so; idempotent
difference        two JSON values → the JSON Patch between them
copies            what is kept of a stored pod with a share
footprint         what the rewritten pod will ask of its node
covered_mounts    which volumes would lie over what the agent mounts
provenance        whether a stored pod can have been given a share by us
unbindable_pods   whether the scheduler cannot bind it where it was placed, and who makes it anew
gate_reason       why a pod waits although there may be room
pod_request       what a stored pod asks for, and how much it is
"""
