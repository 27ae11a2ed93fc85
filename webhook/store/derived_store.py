"""Two stores on top of another: one for trying changes, and one that ignores some allocations."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gpushare import errors, ledger
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView
from gpushare.request import Request
from webhook.store import ledger_store
from webhook.store.chooser import Chooser, Views


class _DerivedStore(abc.ABC):
    """A store that shows another store with changes."""

    def __init__(self, under: ledger_store.LedgerStore) -> None:
        self._under = under

    @property
    def chooser(self) -> Chooser:
        return self._under.chooser

    @property
    def overrides(self) -> Views:
        return {**self._under.overrides, **self._changed()}

    @abc.abstractmethod
    def _changed(self) -> Views:
        """Return the nodes that differ from the underlying store."""

    def assume(
        self, manifest: Mapping[str, Any], request: Request, node: str, allocation_id: str
    ) -> Callable[[], None]:
        return self._under.assume(manifest, request, node, allocation_id)


class ScratchStore(_DerivedStore):
    """A store whose commits stay private, to find out whether several pods fit together. `close` it."""

    def __init__(self, under: ledger_store.LedgerStore) -> None:
        super().__init__(under)
        self._views: dict[str, NodeView] = {}  # nodes that were committed to
        self._assumed: list[Callable[[], None]] = []

    def views(self) -> Iterable[NodeView]:
        return [self._views.get(view.node.name, view) for view in self._under.views()]

    def view(self, node: str) -> NodeView | None:
        return self._views.get(node) or self._under.view(node)

    def _changed(self) -> Views:
        return self._views

    def assume(
        self, manifest: Mapping[str, Any], request: Request, node: str, allocation_id: str
    ) -> Callable[[], None]:
        """Count the pod on the node until `close`."""
        self._assumed.append(super().assume(manifest, request, node, allocation_id))
        return self._assumed[-1]

    def close(self) -> None:
        """Stop counting the pods that were assumed here."""
        for forget in self._assumed:
            forget()

    async def commit(self, node: str, change: ledger_store.Change) -> GpuNode:
        view = self.view(node)
        if view is None:
            raise errors.LedgerError(f"there is no GPUNode {node}")
        after = change(view.node)
        self._views[node] = NodeView.from_node(after)
        return after


class FilteredStore(_DerivedStore):
    """The ledger without some allocations. A commit to a node releases its ignored allocations in the same write."""

    def __init__(self, under: ledger_store.LedgerStore, ignored: Mapping[str, Collection[str]]) -> None:
        """`ignored`: IDs of allocations by node."""
        super().__init__(under)
        self._ignored = ignored
        self._filtered: dict[str, tuple[NodeView, NodeView]] = {}  # the underlying view, and the filtered one

    def views(self) -> Iterable[NodeView]:
        return [self._filter(view) for view in self._under.views()]

    def view(self, node: str) -> NodeView | None:
        view = self._under.view(node)
        return None if view is None else self._filter(view)

    async def commit(self, node: str, change: ledger_store.Change) -> GpuNode:
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

    def _changed(self) -> Views:
        views = {name: self.view(name) for name in self._ignored}
        return {name: view for name, view in views.items() if view is not None}
