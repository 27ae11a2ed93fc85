"""The store in memory: a cluster of which only a file is known. For demonstrations and simulations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpushare import codec, contract, errors, node, pod
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import NodeSpec, PodInfo, SchedulerCache, volumes
from gpushare.placement import NodeView, exclusive_gpus
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store, workload_mix
from webhook.store.assumed_pods import AssumedPods
from webhook.store.chooser import AS_IT_IS, Chooser
from webhook.store.unbindable import NOTHING, Avoided
from webhook.store.unconfirmed import UnconfirmedReservations


class MemoryStore:
    """GPUNodes and, where they are known, Nodes, pods and storage (objects of the kinds that `volumes` reads).

    A GPUNode without a Node is taken for a ready one without limits. avoided: nodes that are not for a pod, whatever is
    free there. bound: a namespace's bound on exclusive GPUs.
    """

    instead = AS_IT_IS

    def __init__(
        self,
        gpunodes: Iterable[Mapping[str, Any]],
        nodes: Iterable[Mapping[str, Any]] = (),
        pods: Iterable[Mapping[str, Any]] = (),
        storage: Iterable[Mapping[str, Any]] = (),
        *,
        avoided: Callable[[pod.PodJson], Avoided] = lambda _: NOTHING,
        bound: Callable[[str], exclusive_gpus.ExclusiveBound | None] = lambda _: None,
    ) -> None:
        self._documents = {codec.read(document).name: document for document in gpunodes}
        self._views = {name: NodeView.from_node(codec.read(document)) for name, document in self._documents.items()}
        self._cache = SchedulerCache(is_full=self._is_full)
        self._assumed = AssumedPods(self._cache, self._holds)
        self._unclaimed = UnconfirmedReservations(time.monotonic)
        self.chooser = Chooser(self.view, self._cache, self._assumed.key, avoided, bound=bound)
        for view in self._views.values():
            self._unclaimed.look(view.node, view.node)
        known = {node.name(document): document for document in nodes}
        for name in {*known, *self._documents}:
            self._cache.put_node_spec(name, NodeSpec.from_manifest(known.get(name) or _plain(name)))
        for item in storage:
            self._cache.put_storage(pod.namespaced_name(item), None, volumes.read(item))
        asked = workload_mix.WorkloadMix()
        for manifest in pods:
            where = (manifest.get("spec") or {}).get("nodeName") or pod.annotations_of(manifest).get(contract.NODE)
            if where and not pod.is_terminal(manifest):
                pod_info = PodInfo.from_manifest(manifest, str(where))
                self._cache.put(pod.namespaced_name(manifest), pod_info)
                if pod.annotations_of(manifest).get(contract.ALLOCATION):
                    asked.change((), workload_mix.asks_of(Pod.of(manifest).request, pod_info.amounts))
        self.chooser.learn(asked.take())

    def missing(self) -> str | None:
        """Nothing: all that there is was there from the start."""
        return None

    def views(self) -> Iterable[NodeView]:
        """Every node with GPUs, as it is now."""
        return self._views.values()

    def stored(self) -> Iterable[GpuNode]:
        """The nodes, without their use."""
        return [view.node for view in self._views.values()]

    def view(self, name: str) -> NodeView | None:
        """The node of this name, or None."""
        return self._views.get(name)

    def expect(self, manifest: Mapping[str, Any], name: str, allocation_id: str) -> Callable[[], None]:
        """Let the pod take room on the node until it is seen there, or the ledger no longer has its allocation."""
        return self._assumed.make(manifest, name, allocation_id)

    def premature(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> Refusal | None:
        """Why nothing is reserved for a pod before it is stored."""
        del manifest, request  # here is no quota
        return self._unclaimed.why_not(namespace)

    def uncounted(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> str | None:
        """Return None: here is no quota."""
        del namespace, manifest, request
        return None

    async def refresh(self, name: str) -> None:
        """Nothing: the view is all there is."""

    async def commit(self, name: str, change: ledger_store.Change) -> GpuNode:
        """Change the node. Raises LedgerError if its rules would be broken."""
        return self.change(name, change)

    def change(self, name: str, change: ledger_store.Change) -> GpuNode:
        """Make the change; nothing comes between reading and writing, as nothing here waits."""
        view = self._views.get(name)
        if view is None:
            raise errors.LedgerError(f"there is no GPUNode {name}")
        try:
            after = change(view.node)
            self._views[name] = NodeView.from_node(after)
            self._unclaimed.look(after, after)
        finally:
            self._assumed.sweep(name)
            self._cache.forget(name)
        return after

    def _holds(self, name: str, allocation_id: str) -> bool:
        view = self._views.get(name)
        return view is not None and any(entry.id == allocation_id for entry in view.node.allocations)

    def _is_full(self, name: str, amounts: tuple[tuple[str, int], ...]) -> bool:
        view = self._views.get(name)
        return view is not None and view.is_full(amounts)

    def leave(self, name: tuple[str, str]) -> None:
        """The pod of this namespace and name is gone, and its room on its node is free."""
        self._cache.put(name, None)

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
