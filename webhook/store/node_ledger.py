"""One GPUNode in this process: as it is stored, the changes that wait for the next write, and the view with both.

Pure, except for the futures that it resolves. A write takes all waiting changes (group commit): it costs the API server
the same with one allocation as with twenty, and only one write of an object can win at a time. Allocations of deleted
GPUNodes are kept too, for GPUNodes that are recreated with the same name (`DeletedNodes`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gpushare import codec, errors
from gpushare.allocation import Allocation
from gpushare.cluster import object_store as objects
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView
from webhook.store import ledger_store

Document = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PendingChange:
    """A change, and a future for the node as it is stored with it."""

    change: ledger_store.Change
    done: asyncio.Future[GpuNode]


class NodeLedger:
    """A GPUNode with pending changes. `view` includes them: all that this process has promised."""

    document: Document
    node: GpuNode
    view: NodeView

    def __init__(self, document: Document, changed: Callable[[NodeLedger], None] = lambda _: None) -> None:
        self._changed = changed
        self._waiting: list[PendingChange] = []
        self._written: list[PendingChange] = []  # in the current write
        self._stored(document)

    @property
    def has_waiting(self) -> bool:
        return any(not pending.done.done() for pending in self._waiting)

    def see(self, document: Document, *, instead_of: Document | None = None) -> bool:
        """Accept a newer state from the API server, and ignore an older one from a lagging watch.

        instead_of: our state when a consistent read for this one began. If we still have it, any version is accepted:
        an older one means that etcd was restored from a backup.
        """
        is_same = document["metadata"].get("uid") == self.document["metadata"].get("uid")
        is_newer = not is_same or _version(document) > _version(self.document)
        if (instead_of is not self.document and not is_newer) or document == self.document:
            return False
        self._stored(document)
        return True

    def has_allocation(self, allocation_id: str) -> bool:
        return allocation_id in self._ids

    def add(self, change: ledger_store.Change) -> asyncio.Future[GpuNode]:
        """Add a change to the next write. Raises the errors of the change if it cannot be made even now."""
        self._show(self._changed_by(change, self.view.node))
        done: asyncio.Future[GpuNode] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingChange(change, done))
        return done

    def begin(self) -> list[PendingChange]:
        self._written = [pending for pending in self._waiting if not pending.done.done()]
        self._waiting = []
        return self._written

    def draft(self, batch: Iterable[PendingChange]) -> tuple[Document | None, list[PendingChange]]:
        """Return the object to write, or None, and the changes that it carries; one that no longer applies fails."""
        node, carried = self.node, []
        for pending in batch:
            if pending.done.done():  # its caller was cancelled
                continue
            try:
                node = self._changed_by(pending.change, node)
            except errors.GpushareError as error:
                pending.done.set_exception(error)
            else:
                carried.append(pending)
        if node is self.node:
            return None, carried
        spec, written = dict(self.document.get("spec") or {}), codec.to_spec(node)
        if node.borrowed != self.node.borrowed:
            spec["borrowed"] = written.get("borrowed", {})
        return {**self.document, "spec": {**spec, "allocations": written["allocations"]}}, carried

    def end(self) -> None:
        self._written = []
        self._replay()

    def fail(self, error: Exception) -> None:
        for pending in (*self._written, *self._waiting):
            if not pending.done.done():
                pending.done.set_exception(error)
        self._written = []
        self._waiting = []

    def _changed_by(self, change: ledger_store.Change, node: GpuNode) -> GpuNode:
        """Return the node after the change. Raises its errors, and LedgerError if the ledger was closed meanwhile."""
        after = change(node)
        if after is not node and not is_open(self.document):
            raise errors.LedgerError(CLOSED)
        return after

    def _stored(self, document: Document) -> None:
        self.document = document
        self.node = as_open(document, codec.read(document))
        self._replay()

    def _replay(self) -> None:
        node = self.node
        for pending in (*self._written, *self._waiting):
            if pending.done.done():
                continue
            try:
                node = self._changed_by(pending.change, node)
            except errors.GpushareError:
                continue  # the write fails it with the reason
        self._show(node)

    def _show(self, node: GpuNode) -> None:
        self.view = NodeView.from_node(node)
        self._ids = {entry.id for entry in node.allocations}
        self._changed(self)


def _version(document: Document) -> int:
    """Return the resource version as a number, comparable within a kind, as Kubernetes 1.35 guarantees."""
    text = str(document["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


KEPT_SECONDS: Final = 3600.0  # for a GPUNode that is not recreated
SORT_OUT_SECONDS: Final = 60.0
CLOSED: Final = "its ledger was recreated, and the placer has not restored its pods yet"


class DeletedNodes:
    """Allocations of deleted GPUNodes, by name; `clock` in seconds, of any origin.

    A pod is stored a moment after its share is reserved, and ungated a moment after it is placed. If the GPUNode is
    deleted in between, listing the pods does not show the share, so it is kept for the next GPUNode. If our cache may
    have missed changes (before its first list, or after a broken watch), the next GPUNode is opened only after every
    in-flight request must have arrived.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allocations: dict[str, tuple[float, Mapping[str, Allocation]]] = {}  # with the time of the deletion
        self._unknown: dict[str, float] = {}  # since when no change can be missed
        self._sorted_out_at = clock()

    def changed(self, change: objects.Delta, *, watching: bool, listed_at: float) -> None:
        """Record a changed GPUNode. watching: by a watch, which misses nothing. listed_at: time of the last list."""
        name = change.key.name
        if change.new is not None and is_open(change.new):
            self._allocations.pop(name, None)
            self._unknown.pop(name, None)
        elif change.old is None:
            if not watching or name not in self._allocations:
                self._unknown[name] = listed_at
        elif change.new is None:
            now = self._clock()
            self._sort_out(now)
            # a GPUNode that was never opened still has those of its predecessor
            _, before = self._allocations.get(name, (now, {}))
            entries = {entry.id: entry for entry in codec.read(change.old).allocations}
            self._allocations[name] = now, {**before, **entries}
            if not watching:
                self._unknown[name] = listed_at

    def entries(self, name: str) -> tuple[Allocation, ...]:
        _, entries = self._allocations.get(name, (0.0, {}))
        return tuple(entries.values())

    def unknown_since(self, name: str) -> float | None:
        """Return until when placements on the node may be unknown, by the clock; None if none can be."""
        return self._unknown.get(name)

    def _sort_out(self, now: float) -> None:
        """Forget old entries, but not on each call: all GPUNodes of a cluster may be deleted at once."""
        if now - self._sorted_out_at < SORT_OUT_SECONDS:
            return
        self._sorted_out_at = now
        self._allocations = {name: left for name, left in self._allocations.items() if now - left[0] < KEPT_SECONDS}
        # Requests in flight then have arrived; but while entries are kept, it matters whether they are complete.
        self._unknown = {
            name: since
            for name, since in self._unknown.items()
            if name in self._allocations or now - since < KEPT_SECONDS
        }


def is_open(document: Mapping[str, Any]) -> bool:
    return "allocations" in (document.get("spec") or {})


def as_open(document: Mapping[str, Any], node: GpuNode) -> GpuNode:
    return node if is_open(document) else node.as_closed(CLOSED)
