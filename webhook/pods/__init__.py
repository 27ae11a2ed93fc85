"""Pods: reads, validates and rewrites pods. Pure.

validation      pod → its request, or why it is denied, with a remedy
mutation        pod and placement → the rewritten pod, and the JSON Patch to it; idempotent
stored_pod      a stored pod with a share, as a value
pod_manifest    a manifest as admission reads it: its parts, gates that keep it waiting, whether it is a valid pod
"""
