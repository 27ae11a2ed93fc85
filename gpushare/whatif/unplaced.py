"""Unplaced: pods and nodes as they would be without a placement."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare import contract, ledger, pod
from gpushare import request as requests
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode


def without_placement(manifest: pod.PodJson) -> pod.PodJson:
    """Return the pod without the annotations, node and hostname selector that placement wrote.

    A hostname selector of the user's own stays. A pod that was not placed is returned unchanged.
    """
    annotations = pod.annotations_of(manifest)
    if contract.ALLOCATION not in annotations:
        return manifest
    spec = {key: value for key, value in (manifest.get("spec") or {}).items() if key != "nodeName"}
    selector = {**(spec.get("nodeSelector") or {})}
    selector.pop(contract.HOSTNAME_LABEL, None)
    if contract.OWN_HOSTNAME in annotations:
        selector[contract.HOSTNAME_LABEL] = annotations[contract.OWN_HOSTNAME]
    asked = {key: value for key, value in annotations.items() if not requests.is_result_key(key)}
    metadata = {**(manifest.get("metadata") or {}), "annotations": asked}
    return {**manifest, "metadata": metadata, "spec": {**spec, "nodeSelector": selector}}


def successor(manifest: pod.PodJson) -> pod.PodJson:
    """Return the pod that its owner would create to replace this one: unplaced, with another name."""
    fresh = without_placement(manifest)
    metadata = {key: value for key, value in (fresh.get("metadata") or {}).items() if key != "uid"}
    spec = {key: value for key, value in (fresh.get("spec") or {}).items() if key != "nodeName"}
    return {**fresh, "metadata": {**metadata, "name": f"{metadata.get('name')}-anew"}, "spec": spec, "status": {}}


def nodes_without(nodes: Sequence[GpuNode], manifest: pod.PodJson) -> list[GpuNode]:
    """Return the nodes without the pod's allocations and backfill reservations, as if it were created now."""
    identity, name = pod.uid(manifest), pod.namespaced_name(manifest)

    def is_its(entry: Allocation) -> bool:
        if entry.pod.uid and identity:
            return entry.pod.uid == identity
        return bool(entry.pod.name) and (entry.pod.namespace, entry.pod.name) == name

    return [
        ledger.release(gpu_node, [entry.id for entry in gpu_node.allocations if is_its(entry)])
        if any(map(is_its, gpu_node.allocations))
        else gpu_node
        for gpu_node in nodes
    ]
