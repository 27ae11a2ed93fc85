"""The ledger on the API server: a cache of GPUNodes and what limits placement. `GpuNodeWriter` writes its changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, cast

from gpushare import contract, errors, isolation, pod, policies, resource_quota, share_range
from gpushare.cluster import api_client, api_errors, informer
from gpushare.cluster import object_store as objects
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import NodeSpec
from gpushare.placement import NodeView
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request
from gpushare.share_range import ShareRange
from webhook.metrics import Metrics
from webhook.store import ledger_store
from webhook.store.avoided_nodes import Contention
from webhook.store.chooser import NO_OVERRIDES, Chooser
from webhook.store.gpunode_writer import GpuNodeWriter
from webhook.store.node_ledger import DeletedNodes, NodeLedger
from webhook.store.occupancy import Occupancy
from webhook.store.reservation_limits import QuotaAllowances, UnconfirmedReservations
from webhook.store.shared_profile import SharedProfile

logger = logging.getLogger(__name__)

NODES_PATH: Final = "/api/v1/nodes"
NAMESPACES_PATH: Final = "/api/v1/namespaces"
_METADATA_KEYS: Final = ("name", "uid", "resourceVersion")
NODES_AT_ONCE: Final = 64  # takes some milliseconds
STALE_SECONDS: Final = 300.0  # longer than an API server takes to restart, and than the pause after that
COUNTED_BY_PLACER: Final = (
    f"{contract.EXCLUSION} in a namespace whose ResourceQuota limits requests.{contract.RESOURCE_PERCENT}: the placer, "
    "which counts the namespace's exclusive GPUs, places it once it is stored"
)


class ApiStore:
    """The live ledger (`ledger_store.LiveLedger`), which `run` keeps up to date.

    on_refused: as in `GpuNodeWriter`. policy, preemption: published with the mix. isolation: as in `Chooser`.
    """

    overrides = NO_OVERRIDES

    def __init__(
        self,
        api: api_client.ApiClient,
        metrics: Metrics,
        *,
        on_refused: Callable[[Mapping[str, Any], str], None] = lambda *_: None,
        policy: str = policies.DEFAULT,
        preemption: bool = False,
        isolation: str = isolation.DEFAULT,
        lifetime_seconds: float = 0.0,
        contention: Contention | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledgers: dict[str, NodeLedger] = {}
        self._listeners: list[Callable[[], None]] = []
        self.contention = contention or Contention()
        self._writer = GpuNodeWriter(
            api, metrics, self.contention, on_refused=on_refused, on_deleted=self._deleted, clock=clock
        )
        self.close = self._writer.close
        self.deleted = DeletedNodes(clock)
        self._gpunodes = informer.Informer(api, contract.GPUNODE_PATH, clock=clock)
        self._gpunodes.subscribe(self._gpunode_changed)
        self._nodes = informer.Informer(api, NODES_PATH, transform=_trim_node)
        self._nodes.subscribe(self._node_changed)
        self._nodes_changed = asyncio.Event()
        self._is_warm = asyncio.Event()  # set once the engine knows all nodes there were at the start
        self._occupancy = Occupancy(api, self, clock=clock)
        self.pods = self._occupancy.shared
        self._cache = self._occupancy.cache
        self._assumed = self._occupancy.assumed
        self.assume = self._assumed.assume
        self._allowances = QuotaAllowances(api)
        self.uncounted = self._allowances.uncounted
        self.evaded = self._allowances.evaded
        self._ranges = ShareRanges(api)
        self.share_range = self._ranges.of
        self._unconfirmed = UnconfirmedReservations(clock, self._occupancy.is_named, lifetime_seconds=lifetime_seconds)
        self.chooser = Chooser(
            self.view,
            self._cache,
            self._cache_key,
            self._occupancy.unbindable.avoided,
            deprioritized=lambda: self.contention.deprioritized(now=clock()),
            bound=self._allowances.bound,
            isolation=isolation,
        )
        self._cache.on_change(lambda _: self._nodes_changed.set())
        self._profile = SharedProfile(
            api,
            self.chooser,
            self._occupancy.workload,
            woken=self._occupancy.lesson_due,
            policy=policy,
            preemption=preemption,
            leads=lambda: self.contention.leads,
            synced=self._nodes.synced,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gpunodes.run())
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._occupancy.run())
            tasks.create_task(self._profile.run())
            tasks.create_task(self._update_chooser())
            tasks.create_task(self._allowances.run())
            tasks.create_task(self._ranges.run())

    async def synced(self) -> None:
        """Wait until every collection has been read once, and the engine knows the nodes."""
        await self._is_warm.wait()

    def missing(self) -> str | None:
        for name, copy in (("GPUNodes", self._gpunodes), ("Nodes", self._nodes)):
            if not copy.synced.is_set():
                return f"the {name} have not been read yet"
        cold = None if self._is_warm.is_set() else "the GPUs of the nodes have not been counted yet"
        quotas = None if self._allowances.informer.synced.is_set() else "the ResourceQuotas have not been read yet"
        ranges = None if self._ranges.informer.synced.is_set() else "the Namespaces have not been read yet"
        return self._occupancy.missing() or quotas or ranges or (cold and (self._profile.missing() or cold))

    def silence(self) -> str | None:
        """Return which cached collection is stale, as a sentence, or None; a stale cache goes on answering."""
        informers = (
            self._gpunodes,
            self._nodes,
            *self._occupancy.informers,
            self._allowances.informer,
            self._ranges.informer,
        )
        return informer.stale_reason(informers, longest_seconds=STALE_SECONDS)

    def lead(self, leads: bool) -> None:
        """Record whether this replica leads, and so renews the placement profile."""
        self.contention.leads = leads
        self._occupancy.lesson_due.set()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of a GPUNode or Node, and when pods free room on a node with GPUs."""
        self._listeners.append(listener)

    def views(self) -> Iterable[NodeView]:
        return [ledger.view for ledger in self._ledgers.values()]

    def view(self, name: str) -> NodeView | None:
        ledger = self._ledgers.get(name)
        return ledger.view if ledger else None

    def stored(self) -> list[GpuNode]:
        return [ledger.node for ledger in self._ledgers.values()]

    def document(self, name: str) -> Mapping[str, Any] | None:
        ledger = self._ledgers.get(name)
        return ledger.document if ledger else None

    def premature(self, namespace: str, manifest: Mapping[str, Any], request: Request) -> Refusal | None:
        lacks = self._allowances.lacks(namespace, resource_quota.asked(manifest, request))
        if lacks is not None:
            return Refusal(lacks, cause=Cause.QUOTA)
        if request.constraints.exclusion and self._allowances.bound(namespace):
            return Refusal(COUNTED_BY_PLACER, cause=Cause.QUOTA)  # each replica alone could use up the whole bound
        return self._unconfirmed.why_not(namespace)

    async def refresh(self, name: str) -> None:
        ledger = self._ledgers.get(name)
        if ledger is not None:
            await self._writer.refresh(name, ledger)

    async def commit(self, name: str, change: ledger_store.Change) -> GpuNode:
        ledger = self._ledgers.get(name)
        if ledger is None:
            raise errors.LedgerError(f"there is no GPUNode {name}")
        try:
            return await self._writer.submit(name, ledger, change)
        finally:
            self._assumed.sweep(name)

    async def _update_chooser(self) -> None:
        """Show changed nodes to the engine in portions, because otherwise the next pod would wait for all of them."""
        for copy in (self._gpunodes, self._nodes):
            await copy.synced.wait()
        await self._occupancy.synced()
        await self._allowances.synced()
        await self._ranges.informer.synced.wait()
        while True:
            self._nodes_changed.clear()
            if self.chooser.update_some(NODES_AT_ONCE):
                await asyncio.sleep(0)
                continue
            if not self._is_warm.is_set():
                await self._profile.ready()
                self._is_warm.set()
            await self._nodes_changed.wait()

    def _gpunode_changed(self, change: objects.Delta) -> None:
        name = change.key.name
        self.deleted.changed(change, watching=self._gpunodes.is_watching, listed_at=self._gpunodes.listed_at)
        if change.new is None:
            self._forget(name)
        elif (known := self._ledgers.get(name)) is not None:
            known.see(change.new, instead_of=known.document if self._gpunodes.went_back else None)
        else:
            self._ledgers[name] = NodeLedger(change.new, lambda ledger: self._view_changed(name, ledger))
        self._assumed.sweep(name)
        self._occupancy.ledger_changed(name)
        self.notify()

    def _node_changed(self, change: objects.Delta) -> None:
        before, after = (item["spec"] if item is not None else None for item in (change.old, change.new))
        if before != after:  # most changes are heartbeats, which change nothing that we keep
            self._cache.put_node_spec(change.key.name, after)
            self.notify()

    def _cache_key(self, manifest: Mapping[str, Any]) -> Hashable:
        assumed = self._assumed.key(manifest)
        return objects.key_of(manifest) if assumed is None and pod.uid(manifest) else assumed

    def has_allocation(self, name: str, allocation_id: str) -> bool:
        ledger = self._ledgers.get(name)
        return ledger is not None and ledger.has_allocation(allocation_id)

    def is_full(self, name: str, amounts: tuple[tuple[str, int], ...]) -> bool:
        ledger = self._ledgers.get(name)
        return ledger is not None and ledger.view.is_full(amounts)

    def named(self, allocation_id: str) -> None:
        self._unconfirmed.seen(allocation_id)

    def freed(self, name: str) -> None:
        if name in self._ledgers:
            self.notify()

    def notify(self) -> None:
        for listener in self._listeners:
            listener()

    def _view_changed(self, name: str, ledger: NodeLedger) -> None:
        self._unconfirmed.update(ledger.view.node, ledger.node)
        self._cache.forget(name)

    def _deleted(self, name: str, ledger: NodeLedger) -> None:
        if self._ledgers.get(name) is ledger:  # otherwise it was recreated meanwhile
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._ledgers.pop(name, None)
        self._unconfirmed.forget(name)
        self._cache.forget(name)


def _trim_node(item: dict[str, Any]) -> dict[str, Any]:
    """Keep what placement needs of a Node; its list of images alone is larger than the rest."""
    metadata = item["metadata"]
    return {
        "metadata": {key: metadata[key] for key in _METADATA_KEYS if key in metadata},
        "spec": NodeSpec.from_manifest(item),
    }


class ShareRanges:
    """The defaults and bounds that Namespaces set, as this process knows them. `run` keeps them current.

    A pod may be created right after its Namespace, before the watch shows it. So a Namespace that the copy lacks is
    read from the API server. A changed annotation counts as soon as the watch shows it; `ApiStore.silence` says when a
    copy has become too old to be used.
    """

    def __init__(self, api: api_client.ApiClient) -> None:
        self._api = api
        self.informer = informer.Informer(api, NAMESPACES_PATH, transform=trim_namespace)
        self.run = self.informer.run

    async def of(self, namespace: str) -> ShareRange:
        """Return the range of a namespace; an empty one if it does not exist. Raises UnreachableError."""
        known = self.informer.objects.get(objects.Key("", namespace))
        if known is not None:
            return cast(ShareRange, known["range"])
        try:
            # A list, because it needs no further right than the watch.
            query = {"fieldSelector": f"metadata.name={namespace}"}
            listed = await self._api.list(NAMESPACES_PATH, query, keep=trim_namespace)
        except api_errors.ClusterError as error:
            raise ledger_store.UnreachableError(str(error)) from error
        there = (item for item in listed.items if item["metadata"]["name"] == namespace)
        return next((item["range"] for item in there), ShareRange(namespace))


def trim_namespace(item: dict[str, Any]) -> dict[str, Any]:
    """Keep the range of a Namespace, and what identifies it."""
    metadata = item["metadata"]
    return {
        "metadata": {key: metadata[key] for key in _METADATA_KEYS if key in metadata},
        "range": share_range.of_namespace(item),
    }
