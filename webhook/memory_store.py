"""The store in memory: a cluster of which only a file is known. For demonstrations and simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpushare import codec, contract, errors, node
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView
from webhook import store


class MemoryStore:
    """GPUNodes and, where they are known, Nodes; a GPUNode without a Node is taken for a ready one without taints."""

    def __init__(self, gpunodes: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]] = ()) -> None:
        self._documents = {codec.read(document).name: document for document in gpunodes}
        self._views = {name: NodeView.of(codec.read(document)) for name, document in self._documents.items()}
        known = {node.name(document): document for document in nodes}
        self._nodes = {name: known.get(name) or _plain(name) for name in self._documents}

    def missing(self) -> str | None:
        """Nothing: all that there is was there from the start."""
        return None

    def views(self) -> Iterable[NodeView]:
        """Every node with GPUs, as it is now."""
        return self._views.values()

    def view(self, name: str) -> NodeView | None:
        """One node, or None."""
        return self._views.get(name)

    def unfit(self, manifest: Mapping[str, Any]) -> Callable[[str], str | None]:
        """Judge nodes for one pod."""
        return lambda name: node.unfit(self._nodes[name], manifest)

    def hostname(self, name: str) -> str:
        """The value of the node's hostname label."""
        return node.labels(self._nodes[name]).get(contract.HOSTNAME_LABEL, name)

    async def commit(self, name: str, change: store.Change) -> GpuNode:
        """Make the change."""
        return self.change(name, change)

    def change(self, name: str, change: store.Change) -> GpuNode:
        """Make the change; nothing comes between reading and writing, as nothing here waits."""
        view = self._views.get(name)
        if view is None:
            raise errors.LedgerError(f"there is no GPUNode {name}")
        after = change(view.node)
        self._views[name] = NodeView.of(after)
        return after

    def documents(self) -> list[dict[str, Any]]:
        """The GPUNode objects as they are now."""
        return [
            {**document, "spec": {**(document.get("spec") or {}), **codec.to_spec(self._views[name].node)}}
            for name, document in self._documents.items()
        ]


def _plain(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {contract.HOSTNAME_LABEL: name}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
