"""DeletedNodes: what was allocated on GPUNodes that were deleted, for those created again under the same name.

A pod is stored a moment after its share was reserved, and a gate is opened a moment after that. When the GPUNode is
deleted in between, nothing in the cluster but that pod's request on its way knows of the share: a list of the pods does
not show it. So what a GPUNode had when it went is kept here, to be written into the next one. Where our copy may have
missed something (before its first list, and between a watch that was cut and the list after it), that is said too:
then whoever opens the next one has to wait until all that could be on its way has arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpushare import codec
from gpushare.allocation import Allocation
from gpushare.cluster import object_store as objects
from gpushare.gpunode import GpuNode

KEPT_SECONDS: Final = 3600.0  # of a GPUNode that does not come back
SORT_OUT_SECONDS: Final = 60.0
CLOSED: Final = "its ledger is empty and which pods are on it has yet to be read back: the placer does that by itself"


class DeletedNodes:
    """By name of the node; `clock` in seconds, of any origin."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, Mapping[str, Allocation]]] = {}  # when it went, and what was on it
        self._unknown: dict[str, float] = {}  # since when all that happens is seen
        self._sorted_out_at = clock()

    def changed(self, change: objects.Delta, *, watching: bool, listed_at: float) -> None:
        """A GPUNode came, changed or went.

        watching: it was told by a watch, which misses nothing, and not found out by a list. listed_at: the last list.
        """
        name = change.key.name
        if change.new is not None and is_open(change.new):
            self._left.pop(name, None)
            self._unknown.pop(name, None)
        elif change.old is None:
            if not watching or name not in self._left:
                self._unknown[name] = listed_at
        elif change.new is None:
            self._went(name, change.old)
            if not watching:
                self._unknown[name] = listed_at

    def entries(self, name: str) -> tuple[Allocation, ...]:
        """What was on it when it went."""
        _, entries = self._left.get(name, (0.0, {}))
        return tuple(entries.values())

    def unknown_since(self, name: str) -> float | None:
        """From when on, by the clock, all that was placed there is known; None when nothing was missed."""
        return self._unknown.get(name)

    def _went(self, name: str, document: Mapping[str, object]) -> None:
        now = self._clock()
        self._sort_out(now)
        _, before = self._left.get(name, (now, {}))  # one that was never opened had all of its predecessor's still
        self._left[name] = now, {**before, **{entry.id: entry for entry in codec.read(document).allocations}}

    def _sort_out(self, now: float) -> None:
        """Forget what is no use any more; now and then only, as all of a cluster's nodes may go at once."""
        if now - self._sorted_out_at < SORT_OUT_SECONDS:
            return
        self._sorted_out_at = now
        self._left = {name: left for name, left in self._left.items() if now - left[0] < KEPT_SECONDS}
        # What was on its way so long ago has arrived; but where entries are kept, it counts whether all were seen.
        self._unknown = {
            name: since for name, since in self._unknown.items() if name in self._left or now - since < KEPT_SECONDS
        }


def is_open(document: Mapping[str, Any]) -> bool:
    """Whether the pods on it are known."""
    return "allocations" in (document.get("spec") or {})


def as_open(document: Mapping[str, Any], node: GpuNode) -> GpuNode:
    """The node, with no GPU to give while it is closed."""
    return node if is_open(document) else node.as_closed(CLOSED)
