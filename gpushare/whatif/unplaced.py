"""Unplaced: a pod as it was before placement, which is how its owner recreates it: free to go to any node."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare import contract, ledger, pod
from gpushare import request as requests
from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode


def without_placement(manifest: pod.PodJson) -> pod.PodJson:
    """The pod without what placement wrote: annotations, the node, and the host in its selector unless that is its own.

    A pod that was not placed is returned unchanged.
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
    """The pod that its owner creates in its stead: unplaced, under another name."""
    fresh = without_placement(manifest)
    metadata = {key: value for key, value in (fresh.get("metadata") or {}).items() if key != "uid"}
    spec = {key: value for key, value in (fresh.get("spec") or {}).items() if key != "nodeName"}
    return {**fresh, "metadata": {**metadata, "name": f"{metadata.get('name')}-anew"}, "spec": spec, "status": {}}


def nodes_without(nodes: Sequence[GpuNode], manifest: pod.PodJson) -> list[GpuNode]:
    """The nodes without the pod's allocations and backfill reservations, as if it were created now."""
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
