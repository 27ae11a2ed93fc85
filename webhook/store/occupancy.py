"""Occupancy: which pods are on which node, and what storage they use, so that no pod is placed where it does not fit.

Little is kept of each pod that has not ended. A pod that was placed and is not bound yet counts on its node if the
ledger has its allocation: pod annotations alone are not trusted. More is kept of pods with a share, also after they
have ended, for the controllers, which do not list and watch pods themselves.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gpushare import contract, errors, pod
from gpushare.cluster import api_client, informer
from gpushare.cluster import object_store as objects
from gpushare.nodefilters import PodInfo, SchedulerCache, share_resources, volumes
from gpushare.pod import PodJson
from gpushare.request import Request
from webhook.pods.stored_pod import Pod, has_share
from webhook.store import avoided_nodes, chooser
from webhook.store.avoided_nodes import Unbindable
from webhook.store.chooser import WorkloadMix

logger = logging.getLogger(__name__)

PODS_PATH: Final = "/api/v1/pods"
MAX_WORDS: Final = 400
NODES_AT_ONCE: Final = 64  # takes some milliseconds
SURE_SECONDS: Final = 60.0  # after so long without news of claims, a missing claim may exist
_SHARED: Final = "shared"

StorageChanged = Callable[[objects.Key, volumes.StorageObject | None, volumes.StorageObject | None], None]


@dataclass(frozen=True, slots=True)
class _Unbound:
    """A pod that the scheduler cannot bind where it was placed, and whether it is being deleted."""

    maker: avoided_nodes.Maker
    why: str
    leaves: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """A pod: its use of the node, the allocation that it names, and its request if it was placed."""

    pod_info: PodInfo
    allocation_id: str
    is_bound: bool
    asks: chooser.Asks = ()
    unbound: _Unbound | None = None


class Storage:
    """Claims, volumes, and how many volumes a node can attach, read from the API server.

    PersistentVolumes are required. A kind that cannot be read is otherwise ignored, and logged. Refusals are retried
    until PersistentVolumes were read, because an API server that has just started refuses everything. changed(key,
    before, after): called with what is known of an object; None if it did not exist, or was deleted.
    """

    def __init__(self, api: api_client.ApiClient, changed: StorageChanged) -> None:
        self._changed = changed
        trim = functools.partial(_trim, volumes.VOLUME)
        self.required = informer.Informer(api, volumes.PATHS[volumes.VOLUME], transform=trim)
        self._copies = {volumes.VOLUME: self.required}
        for kind, path in volumes.PATHS.items():
            if kind != volumes.VOLUME:
                trim, believed = functools.partial(_trim, kind), self.required.synced
                self._copies[kind] = informer.Informer(api, path, transform=trim, believe_refusals=believed)
        for copy in self._copies.values():
            copy.subscribe(self._object_changed)

    def knows_claims(self) -> bool:
        claims = self._copies[volumes.CLAIM]
        return claims.synced.is_set() and claims.age_seconds < SURE_SECONDS

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for copy in self._copies.values():
                tasks.create_task(copy.run())
            tasks.create_task(self._log_unreadable())

    async def synced(self) -> None:
        for copy in self._copies.values():
            await copy.answered.wait()

    def missing(self) -> str | None:
        for kind, copy in self._copies.items():
            if not copy.answered.is_set():
                return f"the {kind}{'es' if kind.endswith('s') else 's'} have not been read yet"
        return None

    async def _log_unreadable(self) -> None:
        for kind, copy in self._copies.items():
            await copy.answered.wait()
            if not copy.synced.is_set():
                logger.warning(
                    "Placement ignores how many volumes a node can attach, because it may not read all of that: "
                    "apply the ClusterRole gpushare-webhook of this release",
                    extra={"kind": kind, "err": copy.problem},
                )

    def _object_changed(self, change: objects.Delta) -> None:
        before, after = (item["found"] if item is not None else None for item in (change.old, change.new))
        if before != after:
            self._changed(change.key, before, after)


class PlacedPodLedger(Protocol):
    """The ledger that decides whether an unbound pod counts on its node, and that hears of pods and storage."""

    def has_allocation(self, name: str, allocation_id: str) -> bool:
        """Whether the ledger of this node has the allocation."""

    def is_full(self, name: str, amounts: tuple[tuple[str, int], ...]) -> bool:
        """Whether the node has no room for these amounts."""

    def named(self, allocation_id: str) -> None:
        """Record that a pod names this allocation."""

    def freed(self, name: str) -> None:
        """Record that a pod freed room on the node."""

    def notify(self) -> None:
        """Report that claims or volumes have changed."""


class Occupancy:
    """Fills the scheduler cache, then `shared` (pods with a share). lesson_due: placement should learn `workload`."""

    def __init__(
        self, api: api_client.ApiClient, ledger: PlacedPodLedger, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._storage = Storage(api, self._storage_changed)
        self.cache = SchedulerCache(is_full=ledger.is_full, knows_claims=self._storage.knows_claims)
        self.assumed = AssumedPods(self.cache, ledger.has_allocation)
        self.unbindable = Unbindable(clock)
        self.lesson_due = asyncio.Event()
        self.workload = WorkloadMix(self.lesson_due.set)
        self._named: collections.Counter[str] = collections.Counter()  # allocation ID -> number of pods
        self._unbound: dict[str, dict[objects.Key, _Seen]] = collections.defaultdict(dict)  # by node
        self._pods = informer.Informer(api, PODS_PATH, transform=trim_pod, clock=clock)
        self._pods.subscribe(self._pod_changed)
        self.shared: informer.Part[Pod] = informer.Part(self._pods, _SHARED)

    def is_named(self, allocation_id: str) -> bool:
        return allocation_id in self._named

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            tasks.create_task(self._storage.run())
            tasks.create_task(self._count_volumes())

    async def synced(self) -> None:
        await self._pods.synced.wait()
        await self._storage.synced()

    @property
    def informers(self) -> tuple[informer.Informer, ...]:
        return self._pods, self._storage.required

    def missing(self) -> str | None:
        return self._storage.missing() if self._pods.synced.is_set() else "the pods have not been read yet"

    async def _count_volumes(self) -> None:
        """Count the first volumes in portions, because otherwise the first pod would wait for all of them."""
        await self.synced()
        has_more = True
        while has_more:
            has_more = self.cache.count_volumes(NODES_AT_ONCE)
            await asyncio.sleep(0)

    def ledger_changed(self, node: str) -> None:
        """Count again the unbound pods that name an allocation on a GPUNode that has changed."""
        for key, seen in list(self._unbound.get(node, {}).items()):
            self._count(key, seen)

    def _storage_changed(
        self, key: objects.Key, before: volumes.StorageObject | None, after: volumes.StorageObject | None
    ) -> None:
        self.cache.put_storage(key, before, after)
        self._ledger.notify()

    def _pod_changed(self, change: objects.Delta) -> None:
        before: _Seen | None = change.old["seen"] if change.old is not None else None
        seen: _Seen | None = change.new["seen"] if change.new is not None else None
        if before is not None and not before.is_bound:
            self._unbound[before.pod_info.node].pop(change.key, None)
            if not self._unbound[before.pod_info.node]:
                del self._unbound[before.pod_info.node]
        if seen is not None and not seen.is_bound:
            self._unbound[seen.pod_info.node][change.key] = seen
        self._update_named(before, seen)
        self._update_unbindable(before, seen)
        self._count(change.key, seen)
        self.workload.change(before.asks if before is not None else (), seen.asks if seen is not None else ())
        if before is not None and (seen is None or seen.pod_info != before.pod_info):
            self._ledger.freed(before.pod_info.node)

    def _count(self, key: objects.Key, seen: _Seen | None) -> None:
        if seen is not None and (seen.is_bound or self._ledger.has_allocation(seen.pod_info.node, seen.allocation_id)):
            self.cache.put(key, seen.pod_info)
            self.assumed.settle(seen.allocation_id)
        else:
            self.cache.put(key, None)

    def _update_unbindable(self, before: _Seen | None, seen: _Seen | None) -> None:
        was = before.unbound if before is not None else None
        if before is None or was is None or was.leaves:
            return
        if seen is not None and seen.is_bound:
            self.unbindable.was_bound(was.maker, before.pod_info.node)
        elif seen is None or (seen.unbound is not None and seen.unbound.leaves):
            self.unbindable.deleted(was.maker, before.pod_info.node, was.why)

    def _update_named(self, before: _Seen | None, seen: _Seen | None) -> None:
        gone, come = before.allocation_id if before is not None else "", seen.allocation_id if seen is not None else ""
        if gone == come:
            return
        if come:
            self._named[come] += 1
            self._ledger.named(come)
        if gone:
            self._named[gone] -= 1
            if not self._named[gone]:
                del self._named[gone]


def trim_pod(item: dict[str, Any]) -> dict[str, Any] | None:
    """Keep what placement and controllers need of a pod; None if it takes no room and has no share."""
    is_shared = has_share(item)
    read = Pod.from_manifest(item) if is_shared or contract.ALLOCATION in pod.annotations_of(item) else None
    seen = _see(item, read)
    if seen is None and not is_shared:
        return None
    return {"metadata": objects.identity_of(item), "seen": seen, **({_SHARED: read} if is_shared else {})}


def _see(item: Mapping[str, Any], read: Pod | None) -> _Seen | None:
    bound = str((item.get("spec") or {}).get("nodeName") or "")
    node = bound or (read.placed_on if read is not None and read.allocation_id else "")
    if not node or pod.is_terminal(item):
        return None
    pod_info = PodInfo.from_manifest(item, node)
    if read is None or not read.allocation_id:
        return _Seen(pod_info, "", bool(bound))
    asks = chooser.asks_of(read, pod_info.amounts)
    return _Seen(pod_info, read.allocation_id, bool(bound), asks, _unbound(read))


def _unbound(read: Pod) -> _Unbound | None:
    maker = avoided_nodes.maker_of(read.ref.namespace, read.ref.name, read.controller)
    if read.unschedulable is None or maker is None:
        return None
    words = read.unschedulable or "no reason given"
    why = f"is excluded for a while, because {maker[1]} could not be bound to it; the scheduler said: {words}"
    return _Unbound(maker[0], errors.shortened(why, longest=MAX_WORDS), read.leaves)


def _trim(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": objects.identity_of(item), "found": volumes.read({**item, "kind": kind})}


class AssumedPods:
    """Counts assumed pods in the scheduler cache. has_allocation(node, allocation ID): whether the ledger has it."""

    def __init__(self, cache: SchedulerCache, has_allocation: Callable[[str, str], bool]) -> None:
        self._cache = cache
        self._has_allocation = has_allocation
        self._assumed: dict[str, tuple[PodJson, str]] = {}  # allocation ID -> pod, node
        self._by_pod: dict[int, str] = {}
        self._by_node: dict[str, set[str]] = collections.defaultdict(set)

    def assume(self, manifest: PodJson, request: Request, node: str, allocation_id: str) -> Callable[[], None]:
        """Count the pod on the node as it is now, and nowhere else; return a function that ends that."""
        for before in (self._by_pod.get(id(manifest)), allocation_id):
            if before is not None:
                self.settle(before)
        self._assumed[allocation_id] = manifest, node
        self._by_pod[id(manifest)] = allocation_id
        self._by_node[node].add(allocation_id)
        self._cache.put(_key(allocation_id), PodInfo.from_manifest(share_resources.equipped(manifest, request), node))
        return lambda: self.settle(allocation_id)

    def key(self, manifest: PodJson) -> Hashable:
        """Return the key under which the scheduler cache counts this very object; None if it is not assumed."""
        allocation_id = self._by_pod.get(id(manifest))
        return None if allocation_id is None else _key(allocation_id)

    def settle(self, allocation_id: str) -> None:
        assumed = self._assumed.pop(allocation_id, None)
        if assumed is None:
            return
        manifest, node = assumed
        del self._by_pod[id(manifest)]
        self._by_node[node].discard(allocation_id)
        if not self._by_node[node]:
            del self._by_node[node]
        self._cache.put(_key(allocation_id), None)

    def sweep(self, node: str) -> None:
        for allocation_id in [
            identity for identity in self._by_node.get(node, ()) if not self._has_allocation(node, identity)
        ]:
            self.settle(allocation_id)


def _key(allocation_id: str) -> Hashable:
    return "assumed", allocation_id
