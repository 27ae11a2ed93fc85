"""A pod's state as a word, from its JSON, as in kubectl's STATUS column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, pod

GATED = "Gated"


def state(manifest: pod.PodJson) -> str:
    """`Running`, `Pending`, `Gated`, `Terminating`, or why a container waits: `CrashLoopBackOff`."""
    status = manifest.get("status") or {}
    if (manifest.get("metadata") or {}).get("deletionTimestamp"):
        return "Terminating"
    if contract.SCHEDULING_GATE in pod.gates(manifest):
        return GATED
    for container in _statuses(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return str(waiting["reason"])
    return str(status.get("reason") or status.get("phase") or "Pending")


def started(manifest: pod.PodJson) -> str:
    """When the kubelet started it, else when it was created: RFC 3339, or empty."""
    status = manifest.get("status") or {}
    return str(status.get("startTime") or (manifest.get("metadata") or {}).get("creationTimestamp") or "")


def _statuses(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
