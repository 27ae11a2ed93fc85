"""Pods: what one asks for, why it is denied, and how it is rewritten. Pure.

structure   whether what was sent is a pod at all
validation  pod → why it is denied, as a sentence with a remedy
mutation    pod and placement → the rewritten pod, and the patch that makes it so; idempotent
difference  two JSON values → the JSON Patch between them
copies      what is kept of a stored pod with a share
footprint   what the rewritten pod will ask of its node
mounts      which volumes would lie over what the agent mounts
origin      whether a stored pod can have been given a share by us
unbound     whether the scheduler cannot bind it where it was placed, and who makes it anew
waits       why a pod waits although there may be room
wanted      what a stored pod asks for, and how much it is
"""
