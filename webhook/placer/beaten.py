"""Beaten: living pods that name an allocation which another pod holds. Pure.

A pod's name may not be known when its share is reserved (`generateName`), and who reads the id of a share that is not
confirmed yet can create a second pod with it that asks for the same. One of the two holds it, the first to be seen; the
other was admitted, holds nothing, and is refused every GPU call on its node. It has to be told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, pod
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode

PodJson = Mapping[str, Any]


def find(nodes: Iterable[GpuNode], pods: Iterable[PodJson]) -> list[tuple[PodJson, PodRef]]:
    """Such pods, each with who holds what it names."""
    holders = {entry.id: entry.pod for node in nodes for entry in node.allocations if entry.pod.uid}
    named = [
        (one, holder)
        for one in pods
        if (holder := holders.get(pod.annotations_of(one).get(contract.ALLOCATION, ""))) and holder.uid != pod.uid(one)
    ]
    if not named:
        return []
    own = {holder.uid for holder in holders.values()}
    return [(one, holder) for one, holder in named if pod.uid(one) not in own and _lives(one)]


def explain(one: PodJson, holder: PodRef) -> str:
    """The sentence for one that nobody makes anew."""
    identity = pod.annotations_of(one)[contract.ALLOCATION]
    return (
        f"names the allocation {identity}, which {holder} holds: it has no share of its own, and no GPU call of it "
        f"succeeds; delete it and create it anew without the annotations that only gpushare writes"
    )


def _lives(one: PodJson) -> bool:
    leaves = (one.get("metadata") or {}).get("deletionTimestamp")
    return not leaves and not pod.is_terminal(one) and contract.SCHEDULING_GATE not in pod.gates(one)
