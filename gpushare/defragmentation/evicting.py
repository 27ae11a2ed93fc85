"""Evicting: which pods may be moved.

A pod may be moved if a controller recreates it, nothing protects it, and its PodDisruptionBudgets allow it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, pod
from gpushare.nodefilters import selectors

REMAKERS = frozenset({"ReplicaSet", "StatefulSet", "ReplicationController"})
# A Job counts an evicted pod as a failure, and the behaviour of custom controllers is unknown.
RECREATE_WITHOUT_HARM = REMAKERS | {"DaemonSet"}
SYSTEM_PRIORITY = 1_000_000_000  # the highest priority that a user's PriorityClass can have


@dataclasses.dataclass(slots=True)
class Budgets:
    """How many more disruptions each PodDisruptionBudget allows."""

    _selected: list[tuple[tuple[str, str], selectors.Selector]]  # (namespace, name), selector of the protected pods
    _left: dict[tuple[str, str], int]

    @classmethod
    def from_manifests(cls, declared: Iterable[Mapping[str, Any]]) -> Budgets:
        """Parse PodDisruptionBudget objects."""
        budgets, left = [], {}
        for budget in declared:
            key = pod.namespaced_name(budget)
            budgets.append((key, selectors.of_labels((budget.get("spec") or {}).get("selector"))))
            left[key] = int((budget.get("status") or {}).get("disruptionsAllowed") or 0)
        return cls(budgets, left)

    def against(self, manifest: pod.PodJson, spent: Mapping[tuple[str, str], int]) -> str:
        """Return the name of a budget that does not allow an eviction after `spent` disruptions, or an empty string."""
        return next((key[1] for key in self.of_pod(manifest) if self._left[key] - spent.get(key, 0) < 1), "")

    def forbids(self, manifest: pod.PodJson) -> str:
        """Return why the budgets forbid the eviction of a pod, as a phrase, or an empty string."""
        if len(self.of_pod(manifest)) > 1:
            return "protected by several PodDisruptionBudgets, for which the API server rejects evictions"
        budget = self.against(manifest, {})
        return f"protected by the PodDisruptionBudget {budget}" if budget else ""

    def of_pod(self, manifest: pod.PodJson) -> list[tuple[str, str]]:
        """Return namespace and name of the budgets that protect a pod."""
        namespace, labels = pod.namespaced_name(manifest)[0], (manifest.get("metadata") or {}).get("labels") or {}
        return [key for key, chosen in self._selected if key[0] == namespace and chosen.matches(labels)]


def eviction(namespace: str, name: str, **preconditions: str) -> dict[str, Any]:
    """Return the Eviction of a pod, with preconditions: `uid`, `resourceVersion`."""
    kind = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": namespace, "name": name}}
    return {**kind, "deleteOptions": {"preconditions": preconditions}}


def protected(manifest: pod.PodJson, *, max_priority: int) -> str:
    """Return why a pod is never moved, as a phrase, or an empty string."""
    if (manifest.get("metadata") or {}).get("deletionTimestamp"):
        return "being deleted"
    kind, priority = owner(manifest)[0], pod.priority(manifest)
    return protection(pod.annotations_of(manifest), kind, priority=priority, max_priority=max_priority)


def protection(annotations: Mapping[str, str], kind: str, *, priority: int, max_priority: int) -> str:
    """Return the same for a pod with these annotations, whose controller is of this kind; empty without one."""
    if annotations.get(contract.NO_EVICT) == "true":
        return contract.NO_EVICT
    if kind not in REMAKERS:
        return f"owned by a {kind}, which may not recreate it" if kind else "no owner that would recreate it"
    if priority >= SYSTEM_PRIORITY or priority > max_priority:
        return "a system priority" if priority >= SYSTEM_PRIORITY else "a higher priority"
    return "a member of a group" if contract.GROUP in annotations else ""


def owner(manifest: pod.PodJson) -> tuple[str, str]:
    """Return kind and UID of the pod's controller; empty strings without one."""
    controller = pod.controller(manifest)
    return (controller.kind, controller.uid) if controller is not None else ("", "")
