"""Unplaced: a pod as it was before placement, which is how its owner recreates it: free to go to any node."""

from __future__ import annotations

from gpushare import contract, pod
from gpushare import request as requests


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
