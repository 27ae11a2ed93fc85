"""Two ledgers that are not quite the real one: as it would be after some changes, and as it is without some holds."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gpushare import errors, ledger
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView
from webhook.store import ledger_store
from webhook.store.chooser import Chooser, Views


class _Over(abc.ABC):
    """A store that stands over another."""

    def __init__(self, under: ledger_store.LedgerStore) -> None:
        self._under = under

    @property
    def chooser(self) -> Chooser:
        """Who says where a pod goes."""
        return self._under.chooser

    @property
    def instead(self) -> Views:
        """The nodes that are not as the chooser knows them."""
        return {**self._under.instead, **self._changed()}

    @abc.abstractmethod
    def _changed(self) -> Views:
        """The nodes that are not as they are below."""

    def expect(self, manifest: Mapping[str, Any], node: str, allocation_id: str) -> Callable[[], None]:
        """Count the pod as being on the node."""
        return self._under.expect(manifest, node, allocation_id)


class Draft(_Over):
    """A store whose commits nobody else ever sees: to find out whether several pods fit together. `end` it."""

    def __init__(self, under: ledger_store.LedgerStore) -> None:
        super().__init__(under)
        self._views: dict[str, NodeView] = {}  # those that were committed to
        self._expected: list[Callable[[], None]] = []

    def views(self) -> Iterable[NodeView]:
        """Every node, with what was committed here."""
        return [self._views.get(view.node.name, view) for view in self._under.views()]

    def view(self, node: str) -> NodeView | None:
        """The node of this name, or None."""
        return self._views.get(node) or self._under.view(node)

    def _changed(self) -> Views:
        return self._views

    def expect(self, manifest: Mapping[str, Any], node: str, allocation_id: str) -> Callable[[], None]:
        """Count the pod as being on the node, until `end`."""
        self._expected.append(super().expect(manifest, node, allocation_id))
        return self._expected[-1]

    def end(self) -> None:
        """The draft is done with: nobody is expected for its sake any more."""
        for ends in self._expected:
            ends()

    async def commit(self, node: str, change: ledger_store.Change) -> GpuNode:
        """Make the change, here only."""
        view = self.view(node)
        if view is None:
            raise errors.LedgerError(f"there is no GPUNode {node}")
        after = change(view.node)
        self._views[node] = NodeView.from_node(after)
        return after


class Without(_Over):
    """The real ledger as if some allocations were not there; whatever is committed to a node takes their place."""

    def __init__(self, under: ledger_store.LedgerStore, gone: Mapping[str, Collection[str]]) -> None:
        """`gone`: node → ids."""
        super().__init__(under)
        self._gone = gone
        self._cleared_of: dict[str, tuple[NodeView, NodeView]] = {}  # what it was before, and without them

    def views(self) -> Iterable[NodeView]:
        """Every node, without what is left out."""
        return [self._cleared(view) for view in self._under.views()]

    def view(self, node: str) -> NodeView | None:
        """One node without them, or None."""
        view = self._under.view(node)
        return None if view is None else self._cleared(view)

    async def commit(self, node: str, change: ledger_store.Change) -> GpuNode:
        """Release them on this node and make the change, in one write."""
        gone = self._gone.get(node, ())

        def instead(stored: GpuNode) -> GpuNode:
            cleared = ledger.release(stored, gone)
            after = change(cleared)
            return stored if after is cleared else after

        return await self._under.commit(node, instead)

    def _cleared(self, view: NodeView) -> NodeView:
        name = view.node.name
        gone = self._gone.get(name)
        if not gone:
            return view
        known = self._cleared_of.get(name)
        if known is None or known[0] is not view:
            known = self._cleared_of[name] = view, NodeView.from_node(ledger.release(view.node, gone))
        return known[1]

    def _changed(self) -> Views:
        views = {name: self.view(name) for name in self._gone}
        return {name: view for name, view in views.items() if view is not None}
