"""Pods: reads, validates and rewrites pods. Pure.

pod_spec_view   the parts of a manifest that admission reads, looked up once
validation      pod → its request, or why it is denied, with a remedy
mutation        pod and placement → the rewritten pod; idempotent
difference      two JSON values → the JSON Patch between them
stored_pod      a stored pod with a share, as a value
gate_reason     why a pod waits regardless of free capacity
pod_structure   whether an object is a valid pod
"""
