"""What gated pods already have in the ledger: shares whose gates were not opened yet, and backfill reservations. Pure.

It is looked up once a round, and brought up to date by whoever changes a hold in that round.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

from gpushare.allocation import NodeAllocation
from gpushare.gpunode import GpuNode
from webhook.controllers import queue
from webhook.controllers.gated_pods.gang import Arranged, Unit

Gone = Mapping[str, Collection[str]]  # node -> ids of allocations to do without


@dataclasses.dataclass(slots=True)
class ExistingAllocations:
    """By uid of the pod; `orders`: its unit's place in the queue."""

    shares: dict[str, NodeAllocation]
    holds: dict[str, list[NodeAllocation]]
    orders: Mapping[str, queue.Order]

    @classmethod
    def of(cls, nodes: Iterable[GpuNode], arranged: Arranged) -> ExistingAllocations:
        """What is in the ledger for the pods that wait; `nodes` as they are stored.

        What this process has promised and not written yet is not enough: nobody else knows of it, and it may fail.
        """
        orders = {uid: unit.order for unit in arranged.units for uid in unit.uids}
        waiting = _waiting(arranged)
        shares: dict[str, NodeAllocation] = {}
        held: dict[str, list[NodeAllocation]] = collections.defaultdict(list)
        for node in nodes:
            for allocation in node.allocations:
                uid = allocation.pod.uid
                if uid not in waiting:
                    continue
                if allocation.is_hold:
                    held[uid].append(NodeAllocation(node.name, allocation))
                elif uid not in shares or allocation.id < shares[uid].allocation.id:
                    shares[uid] = NodeAllocation(node.name, allocation)
        return cls(shares, dict(held), orders)

    def own(self, unit: Unit) -> Gone:
        """What is held for the unit."""
        return _by_node(entry for uid in unit.uids for entry in self.holds.get(uid, ()))

    def behind(self, unit: Unit) -> Gone:
        """What is held for units behind it in the queue: it has to give way."""
        return _by_node(
            entry
            for uid, entries in self.holds.items()
            if uid in self.orders and self.orders[uid] > unit.order
            for entry in entries
        )

    def everything(self) -> Gone:
        """All backfill reservations, by node."""
        return _by_node(entry for entries in self.holds.values() for entry in entries)

    def held_for(self) -> Iterator[tuple[str, str]]:
        """Pod and node of each hold."""
        for entries in self.holds.values():
            for entry in entries:
                yield str(entry.allocation.pod), entry.node


class AllocationHolders:
    """Who has anything in the ledger, node by node: asked again only of nodes that have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[GpuNode, frozenset[str]]] = {}  # uids

    def existing(self, nodes: Iterable[GpuNode], arranged: Arranged) -> ExistingAllocations:
        """What the arranged pods have in the ledger, by `ExistingAllocations.of`."""
        known, self._known = self._known, {}
        for node in nodes:
            cached = known.get(node.name)
            if cached is None or cached[0] is not node:
                cached = node, frozenset(entry.pod.uid for entry in node.allocations)
            self._known[node.name] = cached
        waiting = _waiting(arranged)
        return ExistingAllocations.of(
            (node for node, uids in self._known.values() if not uids.isdisjoint(waiting)), arranged
        )


def _waiting(arranged: Arranged) -> set[str]:
    return {uid for unit in arranged.units for uid in unit.uids} | {pod.ref.uid for pod, _ in arranged.held_back}


def _by_node(entries: Iterable[NodeAllocation]) -> Gone:
    gone: dict[str, set[str]] = collections.defaultdict(set)
    for entry in entries:
        gone[entry.node].add(entry.allocation.id)
    return gone
