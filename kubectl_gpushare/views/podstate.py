"""A pod's state as a word, from its JSON, as in kubectl's STATUS column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, pod

GATED = "Gated"


def state(manifest: pod.PodJson) -> str:
    """Return `Running`, `Pending`, `Gated`, `Terminating`, or why a container is down: `CrashLoopBackOff`,
    `OOMKilled`.
    """
    status = manifest.get("status") or {}
    if (manifest.get("metadata") or {}).get("deletionTimestamp"):
        return "Terminating"
    if contract.SCHEDULING_GATE in pod.gates(manifest):
        return GATED
    if status.get("reason"):
        return str(status["reason"])
    for container in _statuses(status):
        reason = _not_running(container.get("state") or {})
        if reason:
            return reason
    return str(status.get("phase") or "Pending")


def started(manifest: pod.PodJson) -> str:
    """Return when the kubelet started the pod, else when it was created: RFC 3339, or empty."""
    status = manifest.get("status") or {}
    return str(status.get("startTime") or (manifest.get("metadata") or {}).get("creationTimestamp") or "")


def _not_running(state: Mapping[str, Any]) -> str:
    """Return why a container waits or has failed; empty if it runs, has succeeded, or is only starting."""
    waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
    if terminated.get("exitCode"):
        return str(terminated.get("reason") or f"ExitCode:{terminated['exitCode']}")
    return str(waiting.get("reason") or "")


def _statuses(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
