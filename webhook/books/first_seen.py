"""FirstSeen: since when we know of each reservation, by our own clock. Pure.

The time in a reservation was written by the wall clock of the replica that made it; that of the placer may differ, and
either may jump. Judged by them, a share could lapse while its pod is still being stored, or be kept for hours. So, as
with a Lease, two clocks are never compared: a reservation lapses once the placer has watched it for a whole lifetime.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gpushare.allocation import Allocation
from gpushare.gpunode import GpuNode


class FirstSeen:
    """lifetime_seconds: how long a share waits for its pod; no less than the API server takes to store one."""

    def __init__(self, lifetime_seconds: float) -> None:
        self._lifetime_seconds = lifetime_seconds
        self._since: dict[str, float] = {}  # id of an unconfirmed allocation -> when we first saw it

    def timed(self, nodes: Iterable[GpuNode], *, now: float) -> list[GpuNode]:
        """The same nodes, with the end of each reservation told by the clock that `now` is of, in seconds."""
        nodes = list(nodes)
        unconfirmed = [entry.id for node in nodes for entry in node.allocations if not entry.pod.uid]
        self._since = {identity: self._since.get(identity, now) for identity in unconfirmed}
        return [self._timed_node(node) for node in nodes]

    def _timed_node(self, node: GpuNode) -> GpuNode:
        if all(entry.pod.uid for entry in node.allocations):
            return node
        return dataclasses.replace(node, allocations=tuple(map(self._timed_entry, node.allocations)))

    def _timed_entry(self, entry: Allocation) -> Allocation:
        if entry.pod.uid:
            return entry
        return dataclasses.replace(entry, reserved_until=self._since[entry.id] + self._lifetime_seconds)
