"""Pods: what one asks for, why it is denied, and how it is rewritten. Pure.

validation        pod → why it is denied, as a sentence with a remedy
mutation          pod and placement → the rewritten pod; idempotent
difference        two JSON values → the JSON Patch between them
stored_pod        a stored pod with a share, as a value: what is kept of it, and how it is read
covered_mounts    which volumes would lie over what the agent mounts
gate_reason       why a pod waits although there may be room
"""
