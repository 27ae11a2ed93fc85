"""The store in memory: a cluster read from a file, for demonstrations and simulations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpushare import codec, contract, errors, isolation, node, pod
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import NodeSpec, PodInfo, SchedulerCache, volumes
from gpushare.placement import NodeView, exclusive_gpus
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook.pods.stored_pod import Pod
from webhook.store import chooser, ledger_store
from webhook.store.avoided_nodes import NO_AVOIDED, Avoided
from webhook.store.chooser import NO_OVERRIDES, Chooser
from webhook.store.occupancy import AssumedPods
from webhook.store.reservation_limits import UnconfirmedReservations


class MemoryStore:
    """GPUNodes and, if given, Nodes, pods and storage objects of the kinds that `volumes` reads.

    A GPUNode without a Node counts as ready and without limits. avoided: nodes that a pod must not go to, regardless of
    free capacity. bound: a namespace's bound on exclusive GPUs. isolation: as in `Chooser`.
    """

    overrides = NO_OVERRIDES

    def __init__(
        self,
        gpunodes: Iterable[Mapping[str, Any]],
        nodes: Iterable[Mapping[str, Any]] = (),
        pods: Iterable[Mapping[str, Any]] = (),
        storage: Iterable[Mapping[str, Any]] = (),
        *,
        avoided: Callable[[pod.PodJson], Avoided] = lambda _: NO_AVOIDED,
        bound: Callable[[str], exclusive_gpus.ExclusiveBound | None] = lambda _: None,
        isolation: str = isolation.DEFAULT,
    ) -> None:
        self._documents = {codec.read(document).name: document for document in gpunodes}
        self._views = {name: NodeView.from_node(codec.read(document)) for name, document in self._documents.items()}
        self._cache = SchedulerCache(is_full=self._is_full)
        self._assumed = AssumedPods(self._cache, self._has_allocation)
        self._unconfirmed = UnconfirmedReservations(time.monotonic)
        self.chooser = Chooser(self.view, self._cache, self._assumed.key, avoided, bound=bound, isolation=isolation)
        for view in self._views.values():
            self._unconfirmed.update(view.node, view.node)
        known = {node.name(document): document for document in nodes}
        for name in {*known, *self._documents}:
            self._cache.put_node_spec(name, NodeSpec.from_manifest(known.get(name) or _plain(name)))
        for item in storage:
            self._cache.put_storage(pod.namespaced_name(item), None, volumes.read(item))
        asked = chooser.WorkloadMix()
        for manifest in pods:
            where = (manifest.get("spec") or {}).get("nodeName") or pod.annotations_of(manifest).get(contract.NODE)
            if where and not pod.is_terminal(manifest):
                pod_info = PodInfo.from_manifest(manifest, str(where))
                self._cache.put(pod.namespaced_name(manifest), pod_info)
                if pod.annotations_of(manifest).get(contract.ALLOCATION):
                    asked.change((), chooser.asks_of(Pod.from_manifest(manifest).request, pod_info.amounts))
        self.chooser.learn(asked.snapshot())

    def missing(self) -> str | None:
        return None

    def views(self) -> Iterable[NodeView]:
        return self._views.values()

    def stored(self) -> Iterable[GpuNode]:
        return [view.node for view in self._views.values()]

    def view(self, name: str) -> NodeView | None:
        return self._views.get(name)

    def assume(
        self, manifest: Mapping[str, Any], request: Request, name: str, allocation_id: str
    ) -> Callable[[], None]:
        return self._assumed.assume(manifest, request, name, allocation_id)

    def premature(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> Refusal | None:
        del manifest, request  # there are no quotas
        return self._unconfirmed.why_not(namespace)

    def uncounted(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> str | None:
        del namespace, manifest, request
        return None

    async def refresh(self, name: str) -> None:
        """Do nothing: the view is never behind."""

    async def commit(self, name: str, change: ledger_store.Change) -> GpuNode:
        return self.change(name, change)

    def change(self, name: str, change: ledger_store.Change) -> GpuNode:
        view = self._views.get(name)
        if view is None:
            raise errors.LedgerError(f"there is no GPUNode {name}")
        try:
            after = change(view.node)
            self._views[name] = NodeView.from_node(after)
            self._unconfirmed.update(after, after)
        finally:
            self._assumed.sweep(name)
            self._cache.forget(name)
        return after

    def _has_allocation(self, name: str, allocation_id: str) -> bool:
        view = self._views.get(name)
        return view is not None and any(entry.id == allocation_id for entry in view.node.allocations)

    def _is_full(self, name: str, amounts: tuple[tuple[str, int], ...]) -> bool:
        view = self._views.get(name)
        return view is not None and view.is_full(amounts)

    def pod_deleted(self, name: tuple[str, str]) -> None:
        """Free the room of a deleted pod on its node; `name`: namespace and name."""
        self._cache.put(name, None)

    def documents(self) -> list[dict[str, Any]]:
        return [
            {**document, "spec": {**(document.get("spec") or {}), **codec.to_spec(self._views[name].node)}}
            for name, document in self._documents.items()
        ]


def _plain(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {contract.HOSTNAME_LABEL: name}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
