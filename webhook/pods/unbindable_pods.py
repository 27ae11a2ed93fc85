"""Pods that were placed and that the scheduler cannot bind there; and who owns such pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpushare import contract, pod

PodJson = Mapping[str, Any]
Maker = tuple[str, str]


def why(one: PodJson) -> str | None:
    """The scheduler's own words, if it cannot bind a pod that was placed; else None."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    if (
        spec.get("nodeName")  # as nearly all have
        or contract.ALLOCATION not in pod.annotations_of(one)
        or pod.gates(one)
        or pod.is_terminal(one)
        or status.get("nominatedNodeName")  # others are made to leave for it, and have their grace periods
    ):
        return None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "") if condition.get("reason") == "Unschedulable" else None
    return None


def maker(one: PodJson) -> tuple[Maker, str] | None:
    """Who makes such a pod anew, to compare by and as words: its controller; or, by its name, a user.

    With the namespace: whose uid is written on a pod is its user's to say. None for a pod of which nobody can know.
    """
    namespace, name = pod.namespaced_name(one)
    for owner in (one.get("metadata") or {}).get("ownerReferences") or []:
        if owner.get("controller"):
            return (namespace, str(owner.get("uid", ""))), f"a pod of {owner.get('kind')} {owner.get('name')}"
    return ((namespace, f"/{name}"), f"a pod named {name}") if name else None
