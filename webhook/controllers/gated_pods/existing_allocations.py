"""Existing allocations of gated pods: shares of pods that are not ungated yet, and backfill reservations. Pure.

The ledger is read once per round. Code that changes a backfill reservation within the round updates this copy.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping

from gpushare.allocation import NodeAllocation
from gpushare.gpunode import GpuNode
from webhook.controllers import queue
from webhook.controllers.gated_pods.gang import Arranged, Unit

AllocationIds = Mapping[str, Collection[str]]  # by node


@dataclasses.dataclass(slots=True)
class ExistingAllocations:
    """Shares and backfill reservations, by UID of the pod; `orders`: the place of its unit in the queue."""

    shares: dict[str, NodeAllocation]
    reserved: dict[str, list[NodeAllocation]]
    orders: Mapping[str, queue.Order]

    @classmethod
    def read(cls, nodes: Iterable[GpuNode], arranged: Arranged) -> ExistingAllocations:
        """Read what waiting pods have in `nodes`, which must be as stored.

        Pending changes of this process do not count: no other process knows of them, and they may fail.
        """
        orders = {uid: unit.order for unit in arranged.units for uid in unit.uids}
        waiting = _waiting(arranged)
        shares: dict[str, NodeAllocation] = {}
        reserved: dict[str, list[NodeAllocation]] = collections.defaultdict(list)
        for node in nodes:
            for allocation in node.allocations:
                uid = allocation.pod.uid
                if uid not in waiting:
                    continue
                if allocation.is_backfill_reservation:
                    reserved[uid].append(NodeAllocation(node.name, allocation))
                elif uid not in shares or allocation.id < shares[uid].allocation.id:
                    shares[uid] = NodeAllocation(node.name, allocation)
        return cls(shares, dict(reserved), orders)

    def has_any(self, unit: Unit) -> bool:
        """Whether the unit has something in the ledger. Every round continues with such units."""
        return any(uid in self.shares or uid in self.reserved for uid in unit.uids)

    def reserved_for(self, unit: Unit) -> AllocationIds:
        return _by_node(entry for uid in unit.uids for entry in self.reserved.get(uid, ()))

    def reserved_from(self, unit: Unit) -> AllocationIds:
        """Return the reservations of the unit, and of the units behind it, which give way to it."""
        return _by_node(
            entry
            for uid, entries in self.reserved.items()
            if uid in unit.uids or (uid in self.orders and self.orders[uid] > unit.order)
            for entry in entries
        )

    def all_reserved(self) -> AllocationIds:
        return _by_node(entry for entries in self.reserved.values() for entry in entries)

    def pods_and_nodes(self) -> Iterator[tuple[str, str]]:
        """Yield pod and node of each backfill reservation."""
        for entries in self.reserved.values():
            for entry in entries:
                yield str(entry.allocation.pod), entry.node


class AllocationHolders:
    """The UIDs of pods with allocations on each node, read again only for nodes that have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[GpuNode, frozenset[str]]] = {}

    def existing(self, nodes: Iterable[GpuNode], arranged: Arranged) -> ExistingAllocations:
        """Read what the arranged pods have in the ledger, as `ExistingAllocations.read` does."""
        known, self._known = self._known, {}
        for node in nodes:
            cached = known.get(node.name)
            if cached is None or cached[0] is not node:
                cached = node, frozenset(entry.pod.uid for entry in node.allocations)
            self._known[node.name] = cached
        waiting = _waiting(arranged)
        return ExistingAllocations.read(
            (node for node, uids in self._known.values() if not uids.isdisjoint(waiting)), arranged
        )


def _waiting(arranged: Arranged) -> set[str]:
    return {uid for unit in arranged.units for uid in unit.uids} | {pod.ref.uid for pod, _ in arranged.held_back}


def _by_node(entries: Iterable[NodeAllocation]) -> AllocationIds:
    ids: dict[str, set[str]] = collections.defaultdict(set)
    for entry in entries:
        ids[entry.node].add(entry.allocation.id)
    return ids
