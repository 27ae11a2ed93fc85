"""Succession: whether a pod that was evicted has left, and its owner has a placed pod in its stead."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable


@dataclasses.dataclass(frozen=True, slots=True)
class Sibling:
    """A pod of the evicted pod's owner, as far as it matters here. name: with its namespace. reason: why it waits.

    is_placed: it has its share; a CPU-only pod has its node.
    """

    uid: str
    name: str
    node: str
    is_placed: bool
    is_gated: bool
    is_live: bool
    reason: str
    is_cpu_only: bool = False


def waits_for(evicted: str, siblings: Iterable[Sibling], *, before: Collection[str], kind: str, wanted: int) -> str:
    """What the move waits for; empty once the pod has left and its owner has all its replicas, all of them placed.

    evicted: its UID; before: the UIDs of its owner's pods at that time; kind, wanted: the owner's, and its replicas.
    All new pods count: a ReplicaSet does not say which pod replaces which, and it may be scaled up meanwhile.
    """
    siblings = list(siblings)
    fresh = successors(siblings, before)
    for successor in fresh:
        if successor.is_gated:
            return f"{successor.name}, made instead of it, waits: {successor.reason or 'not judged yet'}"
        if not successor.is_placed:
            return f"{successor.name}, made instead of it, {_lack(successor)}"
    if any(sibling.uid == evicted for sibling in siblings):
        return "it has not ended yet"
    live = sum(sibling.is_live for sibling in siblings)
    if live < wanted:
        return f"its {kind} has {live} of {wanted} pods" if fresh else f"its {kind} has made no new pod"
    return ""


def successors(siblings: Iterable[Sibling], before: Collection[str]) -> list[Sibling]:
    """The pods that were not there before."""
    return [sibling for sibling in siblings if sibling.uid not in before]


def _lack(successor: Sibling) -> str:
    if not successor.is_cpu_only:
        return "has no share"
    return f"is not scheduled: {successor.reason or 'the scheduler has not said why'}"
