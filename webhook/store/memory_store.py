"""The store in memory: a cluster read from a file, for demonstrations and simulations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpushare import codec, contract, errors, isolation, node, pod, share_range
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import NodeSpec, PodInfo, SchedulerCache, volumes
from gpushare.placement import NodeView, exclusive_gpus
from gpushare.placement_profile import PlacementProfile
from gpushare.refusal import Refusal
from gpushare.request import Request
from gpushare.share_range import ShareRange
from webhook.pods.stored_pod import Pod
from webhook.store import chooser, ledger_store
from webhook.store.avoided_nodes import NO_AVOIDED, Avoided
from webhook.store.chooser import NO_OVERRIDES, Chooser
from webhook.store.occupancy import AssumedPods
from webhook.store.reservation_limits import UnconfirmedReservations


class MemoryStore:
    """GPUNodes and, if given, Nodes, pods and storage objects of the kinds that `volumes` reads.

    A GPUNode without a Node counts as ready and without limits. profile: has the mix to use; None: learn it from the
    pods. avoided: nodes that a pod must not go to, regardless of free capacity. bound: a namespace's bound on exclusive
    GPUs. namespaces: those with defaults or bounds. isolation: as in `Chooser`.
    """

    overrides = NO_OVERRIDES

    def __init__(
        self,
        gpunodes: Iterable[Mapping[str, Any]],
        nodes: Iterable[Mapping[str, Any]] = (),
        pods: Iterable[Mapping[str, Any]] = (),
        storage: Iterable[Mapping[str, Any]] = (),
        *,
        profile: PlacementProfile | None = None,
        avoided: Callable[[pod.PodJson], Avoided] = lambda _: NO_AVOIDED,
        bound: Callable[[str], exclusive_gpus.ExclusiveBound | None] = lambda _: None,
        namespaces: Iterable[Mapping[str, Any]] = (),
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
        self._namespaces = [*namespaces]
        self._ranges = {known.namespace: known for known in map(share_range.of_namespace, self._namespaces)}
        self._workload = chooser.WorkloadMix()
        self._asks: dict[tuple[str, str], chooser.Asks] = {}
        for manifest in pods:
            key = pod.namespaced_name(manifest)
            if (pod_info := _pod_info(manifest)) is not None:
                self._cache.put(key, pod_info)
            self.pod_changed(key, manifest)
        mix = self._workload.snapshot()
        self.chooser.learn(profile.mix if profile is not None else mix)

    def missing(self) -> str | None:
        return None

    def views(self) -> Iterable[NodeView]:
        return self._views.values()

    def stored(self) -> Iterable[GpuNode]:
        return [view.node for view in self._views.values()]

    def view(self, name: str) -> NodeView | None:
        return self._views.get(name)

    def assume(self, manifest: pod.PodJson, request: Request, name: str, allocation_id: str) -> Callable[[], None]:
        return self._assumed.assume(manifest, request, name, allocation_id)

    def premature(self, namespace: str, *_: object) -> Refusal | None:
        return self._unconfirmed.why_not(namespace)

    def uncounted(self, *_: object) -> None:
        """Return nothing: there are no quotas."""

    evaded = uncounted

    def range_of(self, namespace: str) -> ShareRange:
        return self._ranges.get(namespace, ShareRange(namespace))

    async def share_range(self, namespace: str) -> ShareRange:
        return self.range_of(namespace)

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

    def pod_changed(self, key: tuple[str, str], manifest: pod.PodJson | None) -> None:
        """Count the request of a pod; if it is deleted (None), free its room. `key`: namespace and name."""
        after: chooser.Asks = ()
        if manifest is None:
            self._cache.put(key, None)
        elif contract.ALLOCATION in pod.annotations_of(manifest) and (pod_info := _pod_info(manifest)) is not None:
            after = chooser.asks_of(Pod.from_manifest(manifest), pod_info.amounts)
        self._workload.change(self._asks.pop(key, ()), after)
        if after:
            self._asks[key] = after

    def learn(self) -> None:
        if self._workload.is_due:
            self.chooser.learn(self._workload.snapshot())

    def documents(self) -> list[dict[str, Any]]:
        gpunodes = (
            {**document, "spec": {**(document.get("spec") or {}), **codec.to_spec(self._views[name].node)}}
            for name, document in self._documents.items()
        )
        return [*gpunodes, *map(dict, self._namespaces)]


def _pod_info(manifest: pod.PodJson) -> PodInfo | None:
    """Return what the pod uses of its node; None if it has none, or has ended."""
    where = (manifest.get("spec") or {}).get("nodeName") or pod.annotations_of(manifest).get(contract.NODE)
    return PodInfo.from_manifest(manifest, str(where)) if where and not pod.is_terminal(manifest) else None


def _plain(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {contract.HOSTNAME_LABEL: name}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
