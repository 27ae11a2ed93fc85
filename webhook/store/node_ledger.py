"""One GPUNode in this process: what is stored, the changes that wait for the next write, and the view with both.

Pure but for the futures it answers. A write takes every change that waits (group commit), because a write costs the API
server the same whether it carries one allocation or twenty, and only one write of an object can win at a time.
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
    """A change, and who waits for the node as it is stored with it."""

    change: ledger_store.Change
    done: asyncio.Future[GpuNode]


class NodeLedger:
    """`view` is what is stored plus what waits; it is never behind what this process has promised."""

    document: Document
    node: GpuNode
    view: NodeView

    def __init__(self, document: Document, changed: Callable[[NodeLedger], None] = lambda _: None) -> None:
        """`changed`: called when there is another view."""
        self._changed = changed
        self._waiting: list[PendingChange] = []
        self._written: list[PendingChange] = []  # in the write that is under way
        self._stored(document)

    @property
    def has_waiting(self) -> bool:
        """Whether a write is due."""
        return any(not pending.done.done() for pending in self._waiting)

    def see(self, document: Document, *, instead_of: Document | None = None) -> bool:
        """Take a newer state from the API server; an older one, from a watch that lags, is nothing new.

        instead_of: what we had when we asked for this one, by a read that lags behind nothing. If we have it still, the
        state is taken whatever its version: where it is an older one, etcd was restored from a backup.
        """
        if instead_of is not self.document and not _is_newer(document, than=self.document):
            return False
        if document == self.document:
            return False
        self._stored(document)
        return True

    def holds(self, allocation_id: str) -> bool:
        """Whether there is this allocation, written or about to be."""
        return allocation_id in self._ids

    def add(self, change: ledger_store.Change) -> asyncio.Future[GpuNode]:
        """Let a change wait for the next write. Raises what the change raises, if it can not be made even now."""
        self._show(self._changed_by(change, self.view.node))
        done: asyncio.Future[GpuNode] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingChange(change, done))
        return done

    def begin(self) -> list[PendingChange]:
        """Take all that waits into the write that begins now."""
        self._written = [pending for pending in self._waiting if not pending.done.done()]
        self._waiting = []
        return self._written

    def draft(self, batch: Iterable[PendingChange]) -> tuple[Document | None, list[PendingChange]]:
        """The object to write and the changes it carries; None when it would be as it is.

        Whoever's change cannot be made on what is stored now is told so.
        """
        node, carried = self.node, []
        for pending in batch:
            if pending.done.done():  # gave up waiting
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
        """The write is over, well or not."""
        self._written = []
        self._look()

    def fail(self, error: Exception) -> None:
        """Give all who wait for the next write this error."""
        for pending in (*self._written, *self._waiting):
            if not pending.done.done():
                pending.done.set_exception(error)
        self._written, self._waiting = [], []

    def _changed_by(self, change: ledger_store.Change, node: GpuNode) -> GpuNode:
        """The node after the change. Raises what the change raises, and LedgerError where the ledger is closed.

        A write would open it, and the pods that run there are not in it yet. A change that was decided before it was
        closed may come as late as now.
        """
        after = change(node)
        if after is not node and not deleted_nodes.is_open(self.document):
            raise errors.LedgerError(deleted_nodes.CLOSED)
        return after

    def _stored(self, document: Document) -> None:
        self.document = document
        self.node = deleted_nodes.as_open(document, codec.read(document))
        self._look()

    def _look(self) -> None:
        node = self.node
        for pending in (*self._written, *self._waiting):
            if pending.done.done():
                continue
            try:
                node = self._changed_by(pending.change, node)
            except errors.GpushareError:
                continue  # its turn comes at the write, which tells whoever waits
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
    """Resource versions of one kind can be compared as numbers since Kubernetes 1.35 by contract, before by custom."""
    text = str(document["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
