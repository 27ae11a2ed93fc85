"""Allocation conflicts: living pods that name an allocation which another pod holds. Pure.

A pod's name may not be known when its share is reserved (`generateName`), and who reads the id of a share that is not
confirmed yet can create a second pod with it that asks for the same. One of the two holds it, the first to be seen; the
other was admitted, holds nothing, and is refused every GPU call on its node. It has to be told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpushare import contract, pod
from gpushare.allocation import PodRef
from webhook.books.touched_nodes import Touched

PodJson = Mapping[str, Any]


class AllocationConflict:
    """Such pods of all nodes, of which only some are looked at anew."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[PodJson, PodRef]]] = {}  # by node

    def renew(self, touched: Touched) -> list[tuple[PodJson, PodRef]]:
        """Such pods, each with who holds what it names; `touched`: since the last time."""
        for name in self._found.keys() & touched.names:
            del self._found[name]
        entries = [(node.name, entry) for node in touched.nodes for entry in node.allocations if entry.pod.uid]
        holders = {entry.id: (name, entry.pod) for name, entry in entries}
        own = {entry.pod.uid for _, entry in entries}
        for one in touched.pods:
            held = holders.get(pod.annotations_of(one).get(contract.ALLOCATION, ""))
            if held is not None and pod.uid(one) not in own and _lives(one):
                self._found.setdefault(held[0], []).append((one, held[1]))
        return [one for found in self._found.values() for one in found]


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
