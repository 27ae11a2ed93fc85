"""The ledger as this process sees it, how it is changed, and two ledgers on top of one: scratch and filtered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from gpushare import errors, ledger
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView
from gpushare.pod import PodJson
from gpushare.refusal import Refusal
from gpushare.request import Request
from gpushare.share_range import ShareRange
from webhook.store.chooser import Chooser, Views

# A GPUNode → the changed GPUNode, or the very same object if nothing is to be done. It may be called several times, on
# newer states, and only the last result counts. It raises LedgerError if the node has no room for the change.
Change = Callable[[GpuNode], GpuNode]

logger = logging.getLogger(__name__)


class UnreachableError(Exception):
    """The ledger could not be read or written; it is unknown whether the change was written."""


class WriteRefusedError(UnreachableError):
    """The API server rejects this change; a change of another node may succeed."""


class LedgerStore(Protocol):
    """A ledger whose views include everything that this process has committed or is about to commit."""

    @property
    def chooser(self) -> Chooser:
        """The placement engine of this ledger."""

    @property
    def overrides(self) -> Views:
        """Views of nodes that differ from those the chooser knows; pass them with each call."""

    def views(self) -> Iterable[NodeView]:
        """Return every node with GPUs."""

    def view(self, node: str) -> NodeView | None:
        """Return one node, or None if there is no such GPUNode."""

    def assume(self, manifest: PodJson, request: Request, node: str, allocation_id: str) -> Callable[[], None]:
        """Count the pod on the node from now on; called just before its allocation is committed.

        That ends when the pod is seen there, when the ledger does not have the allocation (any more), when the same
        manifest is assumed elsewhere, or when the returned function is called. The pod itself is not counted when it is
        placed again.
        """

    async def commit(self, node: str, change: Change) -> GpuNode:
        """Write the change; return the node as stored. Raises errors of `change`, LedgerError, UnreachableError."""


class LiveLedger(LedgerStore, Protocol):
    """The ledger itself, as opposed to a store derived from it."""

    def missing(self) -> str | None:
        """Return what has not been read yet, as a sentence, or None."""

    def stored(self) -> Iterable[GpuNode]:
        """Return the nodes as they are stored, without pending commits, which may fail."""

    def premature(self, namespace: str, manifest: PodJson, request: Request) -> Refusal | None:
        """Return why nothing is reserved for a pod before it is stored, or None."""

    def uncounted(self, namespace: str, manifest: PodJson, request: Request) -> str | None:
        """Return why the ResourceQuotas of a namespace cannot count the request, or None."""

    def evaded(self, namespace: str, replaced: Collection[str]) -> str | None:
        """Return which ResourceQuota no longer bounds a pod whose resources a share has `replaced`, or None."""

    async def share_range(self, namespace: str) -> ShareRange:
        """Return the defaults and bounds of a namespace. Raises UnreachableError."""

    async def refresh(self, node: str) -> None:
        """Read a node from the API server, so that its view has everything stored so far. Raises UnreachableError."""


async def try_commit(
    store: LedgerStore, node: str, change: Change, failure: str, *, level: int = logging.WARNING
) -> GpuNode | None:
    """Commit a change that the next round finds again; None if that fails, with `failure` and the cause in the log."""
    try:
        return await store.commit(node, change)
    except (UnreachableError, errors.LedgerError) as error:
        logger.log(level, failure, extra={"node": node, "err": str(error)})
        return None


class _DerivedStore:
    """A store that shows another store with changes."""

    def __init__(self, under: LedgerStore) -> None:
        self._under = under
        self.chooser = under.chooser

    def assume(self, manifest: PodJson, request: Request, node: str, allocation_id: str) -> Callable[[], None]:
        return self._under.assume(manifest, request, node, allocation_id)


class ScratchStore(_DerivedStore):
    """A store whose commits stay private, to find out whether several pods fit together. `close` it."""

    def __init__(self, under: LedgerStore) -> None:
        super().__init__(under)
        self._views: dict[str, NodeView] = {}  # nodes that were committed to
        self._assumed: list[Callable[[], None]] = []

    def views(self) -> Iterable[NodeView]:
        return [self._views.get(view.node.name, view) for view in self._under.views()]

    def view(self, node: str) -> NodeView | None:
        return self._views.get(node) or self._under.view(node)

    @property
    def overrides(self) -> Views:
        return {**self._under.overrides, **self._views}

    def assume(self, manifest: PodJson, request: Request, node: str, allocation_id: str) -> Callable[[], None]:
        self._assumed.append(super().assume(manifest, request, node, allocation_id))
        return self._assumed[-1]

    def adopt(self, over: ScratchStore) -> None:
        """Commit what was committed to a scratch store over this one; this store has what was assumed there anyway."""
        self._views |= over._views

    def close(self) -> None:
        for forget in self._assumed:
            forget()

    async def commit(self, node: str, change: Change) -> GpuNode:
        view = self.view(node)
        if view is None:
            raise errors.LedgerError(f"there is no GPUNode {node}")
        after = change(view.node)
        self._views[node] = NodeView.from_node(after)
        return after


class FilteredStore(_DerivedStore):
    """The ledger without some allocations. A commit to a node releases its ignored allocations in the same write."""

    def __init__(self, under: LedgerStore, ignored: Mapping[str, Collection[str]]) -> None:
        """`ignored`: IDs of allocations by node."""
        super().__init__(under)
        self._ignored = ignored
        self._filtered: dict[str, tuple[NodeView, NodeView]] = {}  # the underlying view, and the filtered one

    def views(self) -> Iterable[NodeView]:
        return [self._filter(view) for view in self._under.views()]

    def view(self, node: str) -> NodeView | None:
        view = self._under.view(node)
        return None if view is None else self._filter(view)

    async def commit(self, node: str, change: Change) -> GpuNode:
        ignored = self._ignored.get(node, ())

        def release_and_change(stored: GpuNode) -> GpuNode:
            released = ledger.release(stored, ignored)
            after = change(released)
            return stored if after is released else after

        return await self._under.commit(node, release_and_change)

    def _filter(self, view: NodeView) -> NodeView:
        name = view.node.name
        ignored = self._ignored.get(name)
        if not ignored:
            return view
        known = self._filtered.get(name)
        if known is None or known[0] is not view:
            known = self._filtered[name] = view, NodeView.from_node(ledger.release(view.node, ignored))
        return known[1]

    @property
    def overrides(self) -> Views:
        changed = {name: view for name in self._ignored if (view := self.view(name)) is not None}
        return {**self._under.overrides, **changed}
