"""DeletedNodes: allocations of deleted GPUNodes, for GPUNodes that are recreated with the same name.

A pod is stored a moment after its share is reserved, and ungated a moment after it is placed. If the GPUNode is deleted
in between, only that in-flight request knows of the share; listing the pods does not show it. So the allocations of a
deleted GPUNode are kept here, and written into the next one. If our cache may have missed changes (before its first
list, or between a broken watch and the list after it), that is recorded too. Then the next GPUNode is opened only after
every in-flight request must have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpushare import codec
from gpushare.allocation import Allocation
from gpushare.cluster import object_store as objects
from gpushare.gpunode import GpuNode

KEPT_SECONDS: Final = 3600.0  # for a GPUNode that is not recreated
SORT_OUT_SECONDS: Final = 60.0
CLOSED: Final = "its ledger was recreated, and the placer has not restored its pods yet"


class DeletedNodes:
    """Allocations of deleted GPUNodes, by name; `clock` in seconds, of any origin."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allocations: dict[
            str, tuple[float, Mapping[str, Allocation]]
        ] = {}  # time of the deletion, and the allocations
        self._unknown: dict[str, float] = {}  # since when no change can be missed
        self._sorted_out_at = clock()

    def changed(self, change: objects.Delta, *, watching: bool, listed_at: float) -> None:
        """Record that a GPUNode was created, changed or deleted.

        watching: the change comes from a watch, which misses nothing, and not from a list. listed_at: time of the last
        list.
        """
        name = change.key.name
        if change.new is not None and is_open(change.new):
            self._allocations.pop(name, None)
            self._unknown.pop(name, None)
        elif change.old is None:
            if not watching or name not in self._allocations:
                self._unknown[name] = listed_at
        elif change.new is None:
            self._record_deletion(name, change.old)
            if not watching:
                self._unknown[name] = listed_at

    def entries(self, name: str) -> tuple[Allocation, ...]:
        """Return the allocations of the deleted GPUNode."""
        _, entries = self._allocations.get(name, (0.0, {}))
        return tuple(entries.values())

    def unknown_since(self, name: str) -> float | None:
        """Return until when placements on the node may be unknown, by the clock; None if none can be."""
        return self._unknown.get(name)

    def _record_deletion(self, name: str, document: Mapping[str, object]) -> None:
        now = self._clock()
        self._sort_out(now)
        # a GPUNode that was never opened still has those of its predecessor
        _, before = self._allocations.get(name, (now, {}))
        self._allocations[name] = now, {**before, **{entry.id: entry for entry in codec.read(document).allocations}}

    def _sort_out(self, now: float) -> None:
        """Forget old entries, but not on each call: all GPUNodes of a cluster may be deleted at once."""
        if now - self._sorted_out_at < SORT_OUT_SECONDS:
            return
        self._sorted_out_at = now
        self._allocations = {name: left for name, left in self._allocations.items() if now - left[0] < KEPT_SECONDS}
        # Requests that were in flight then have arrived. But while entries are kept, it matters whether they are
        # complete.
        self._unknown = {
            name: since
            for name, since in self._unknown.items()
            if name in self._allocations or now - since < KEPT_SECONDS
        }


def is_open(document: Mapping[str, Any]) -> bool:
    """Whether the GPUNode's allocations are complete."""
    return "allocations" in (document.get("spec") or {})


def as_open(document: Mapping[str, Any], node: GpuNode) -> GpuNode:
    """Return the node, without free GPUs while it is closed."""
    return node if is_open(document) else node.as_closed(CLOSED)
