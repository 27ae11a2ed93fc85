"""One GPUNode in this process: as it is stored, the changes that wait for the next write, and the view with both.

Pure, except for the futures that it resolves. A write takes all waiting changes (group commit): it costs the API server
the same with one allocation as with twenty, and only one write of an object can win at a time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpushare import codec, errors
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView
from webhook.store import deleted_nodes, ledger_store

Document = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PendingChange:
    """A change, and a future for the node as it is stored with it."""

    change: ledger_store.Change
    done: asyncio.Future[GpuNode]


class NodeLedger:
    """A GPUNode with pending changes. `view` is the stored node plus those; it includes all that this process has
    promised.
    """

    document: Document
    node: GpuNode
    view: NodeView

    def __init__(self, document: Document, changed: Callable[[NodeLedger], None] = lambda _: None) -> None:
        """`changed`: called after each change of the view."""
        self._changed = changed
        self._waiting: list[PendingChange] = []
        self._written: list[PendingChange] = []  # in the current write
        self._stored(document)

    @property
    def has_waiting(self) -> bool:
        """Whether a change waits for a write."""
        return any(not pending.done.done() for pending in self._waiting)

    def see(self, document: Document, *, instead_of: Document | None = None) -> bool:
        """Accept a newer state from the API server, and ignore an older one from a lagging watch.

        instead_of: our state when a consistent read for this one began. If we still have it, any version is accepted:
        an older one means that etcd was restored from a backup.
        """
        if instead_of is not self.document and not _is_newer(document, than=self.document):
            return False
        if document == self.document:
            return False
        self._stored(document)
        return True

    def has_allocation(self, allocation_id: str) -> bool:
        """Whether the allocation is stored or pending."""
        return allocation_id in self._ids

    def add(self, change: ledger_store.Change) -> asyncio.Future[GpuNode]:
        """Add a change to the next write. Raises the errors of the change if it cannot be made even now."""
        self._show(self._changed_by(change, self.view.node))
        done: asyncio.Future[GpuNode] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingChange(change, done))
        return done

    def begin(self) -> list[PendingChange]:
        """Begin a write with all waiting changes, and return them."""
        self._written = [pending for pending in self._waiting if not pending.done.done()]
        self._waiting = []
        return self._written

    def draft(self, batch: Iterable[PendingChange]) -> tuple[Document | None, list[PendingChange]]:
        """Return the object to write, None if nothing changes, and the changes that it carries.

        A change that no longer applies fails with the reason.
        """
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
        allocations = codec.to_spec(node)["allocations"]
        return {**self.document, "spec": {**(self.document.get("spec") or {}), "allocations": allocations}}, carried

    def end(self) -> None:
        """End the write, whether or not it succeeded."""
        self._written = []
        self._replay()

    def fail(self, error: Exception) -> None:
        """Fail all pending changes with this error."""
        for pending in (*self._written, *self._waiting):
            if not pending.done.done():
                pending.done.set_exception(error)
        self._written, self._waiting = [], []

    def _changed_by(self, change: ledger_store.Change, node: GpuNode) -> GpuNode:
        """Return the node after the change. Raises the errors of the change, and LedgerError if the ledger is closed.

        A write would open the ledger without the pods that run there. A change may arrive after the ledger was closed.
        """
        after = change(node)
        if after is not node and not deleted_nodes.is_open(self.document):
            raise errors.LedgerError(deleted_nodes.CLOSED)
        return after

    def _stored(self, document: Document) -> None:
        self.document = document
        self.node = deleted_nodes.as_open(document, codec.read(document))
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


def _is_newer(document: Document, *, than: Document) -> bool:
    if document["metadata"].get("uid") != than["metadata"].get("uid"):
        return True
    return _version(document) > _version(than)


def _version(document: Document) -> int:
    """Return the resource version as a number, comparable within a kind (guaranteed since Kubernetes 1.35, true
    before).
    """
    text = str(document["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
