"""Occupancy: which pods are on which node, as the API server tells it, so that nothing is pinned where it has no room.

Of every pod in the cluster that has not ended very little is kept. One that was placed and is not bound yet counts on
its node, if the ledger knows its allocation: what is written on a pod is not believed. Of one with a share more is
kept, also when it has ended, for those who look after it: they have no list and no watch of their own.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare import contract, errors, pod
from gpushare.cluster import api_client, informer
from gpushare.cluster import object_store as objects
from gpushare.nodefilters import PodInfo, SchedulerCache, volumes
from gpushare.nodefilters.scheduler_cache import IsFull
from webhook.pods.stored_pod import Pod, has_share
from webhook.store import unbindable, workload_mix
from webhook.store.assumed_pods import AssumedPods
from webhook.store.storage import Storage
from webhook.store.unbindable import Unbindable
from webhook.store.workload_mix import WorkloadMix

PODS_PATH: Final = "/api/v1/pods"
MAX_WORDS: Final = 400
NODES_AT_ONCE: Final = 64  # some milliseconds
_OURS: Final = "ours"


@dataclass(frozen=True, slots=True)
class _Unbound:
    """That the scheduler cannot bind it where it was placed, and whether it leaves."""

    maker: unbindable.Maker
    why: str
    leaves: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """A pod: what it takes of its node; the allocation that it names; the share it asked for, if it has been placed."""

    pod_info: PodInfo
    allocation_id: str
    is_bound: bool
    asks: workload_mix.Asks = ()
    unbound: _Unbound | None = None


class Occupancy:
    """Fills `cache` with pods, and with what they mount.

    holds(node, allocation id): whether the ledger has it. is_full: whether it has no room for these amounts. Called are
    freed(node) when there is more room there, came(allocation id) when a pod that names it is seen, changed when
    claims, volumes or what nodes can attach of them are others, and due when placement is to learn `workload`.

    ours: the pods with a share; `cache` knows of a change before it does. assumed: those that were placed a moment ago.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        *,
        holds: Callable[[str, str], bool] = lambda *_: False,
        is_full: IsFull = lambda *_: False,
        freed: Callable[[str], None] = lambda _: None,
        came: Callable[[str], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
        due: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._holds = holds
        self._freed = freed
        self._came = came
        self._changed = changed
        self._storage = Storage(api, self._storage_changed)
        self.cache = SchedulerCache(is_full=is_full, knows_claims=self._storage.knows_claims)
        self.assumed = AssumedPods(self.cache, holds)
        self.unbindable = Unbindable(clock)
        self.workload = WorkloadMix(due)
        self._named: collections.Counter[str] = collections.Counter()  # ids of allocations, by how many pods
        self._unbound: dict[str, dict[objects.Key, _Seen]] = collections.defaultdict(dict)  # by node
        self._pods = informer.Informer(api, PODS_PATH, transform=kept, clock=clock)
        self._pods.subscribe(self._pod_changed)
        self.ours: informer.Part[Pod] = informer.Part(self._pods, _OURS)

    def is_named(self, allocation_id: str) -> bool:
        """Whether a pod that names this allocation is there."""
        return allocation_id in self._named

    async def run(self) -> None:
        """Keep the scheduler cache true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            tasks.create_task(self._storage.run())
            tasks.create_task(self._count_volumes())

    async def synced(self) -> None:
        """Wait until everything has been read once."""
        await self._pods.synced.wait()
        await self._storage.synced()

    @property
    def informers(self) -> tuple[informer.Informer, ...]:
        """The informers that keep the cache true."""
        return self._pods, self._storage.volumes

    def missing(self) -> str | None:
        """What has not been read yet, as a sentence; None when nothing is missing."""
        return self._storage.missing() if self._pods.synced.is_set() else "the pods have not been read yet"

    async def _count_volumes(self) -> None:
        """What is there at the start is counted in portions, and not by whoever asks first."""
        await self.synced()
        is_left = True
        while is_left:
            is_left = self.cache.count_volumes(NODES_AT_ONCE)
            await asyncio.sleep(0)

    def ledger_changed(self, node: str) -> None:
        """The GPUNode has changed: whoever names an allocation on it is looked at again."""
        for key, seen in list(self._unbound.get(node, {}).items()):
            self._count(key, seen)

    def _storage_changed(self, key: objects.Key, before: volumes.Found | None, after: volumes.Found | None) -> None:
        self.cache.put_storage(key, before, after)
        self._changed()

    def _pod_changed(self, change: objects.Delta) -> None:
        before, seen = _seen(change.old), _seen(change.new)
        if before is not None and not before.is_bound:
            self._unbound[before.pod_info.node].pop(change.key, None)
            if not self._unbound[before.pod_info.node]:
                del self._unbound[before.pod_info.node]
        if seen is not None and not seen.is_bound:
            self._unbound[seen.pod_info.node][change.key] = seen
        self._name(before, seen)
        self._look_unbound(before, seen)
        self._count(change.key, seen)
        self.workload.change(before.asks if before is not None else (), seen.asks if seen is not None else ())
        if before is not None and (seen is None or seen.pod_info != before.pod_info):
            self._freed(before.pod_info.node)

    def _count(self, key: objects.Key, seen: _Seen | None) -> None:
        counts = seen is not None and (seen.is_bound or self._holds(seen.pod_info.node, seen.allocation_id))
        self.cache.put(key, seen.pod_info if seen is not None and counts else None)
        if seen is not None and counts:
            self.assumed.settle(seen.allocation_id)

    def _look_unbound(self, before: _Seen | None, seen: _Seen | None) -> None:
        was = before.unbound if before is not None else None
        if before is None or was is None or was.leaves:
            return
        if seen is not None and seen.is_bound:
            self.unbindable.bound(was.maker, before.pod_info.node)
        elif seen is None or (seen.unbound is not None and seen.unbound.leaves):
            self.unbindable.left(was.maker, before.pod_info.node, was.why)

    def _name(self, before: _Seen | None, seen: _Seen | None) -> None:
        gone, come = before.allocation_id if before is not None else "", seen.allocation_id if seen is not None else ""
        if gone == come:
            return
        if come:
            self._named[come] += 1
            self._came(come)
        if gone:
            self._named[gone] -= 1
            if not self._named[gone]:
                del self._named[gone]


def kept(item: dict[str, Any]) -> dict[str, Any] | None:
    """What is kept of a pod; None where it takes no room and has no share."""
    is_ours = has_share(item)
    read = Pod.of(item) if is_ours or contract.ALLOCATION in pod.annotations_of(item) else None
    seen = _taken(item, read)
    if seen is None and not is_ours:
        return None
    return {"metadata": objects.identity_of(item), "seen": seen, **({_OURS: read} if is_ours else {})}


def _taken(item: Mapping[str, Any], read: Pod | None) -> _Seen | None:
    bound = str((item.get("spec") or {}).get("nodeName") or "")
    node = bound or (read.placed_on if read is not None and read.allocation_id else "")
    if not node or pod.is_terminal(item):
        return None
    pod_info = PodInfo.of(item, node)
    if read is None or not read.allocation_id:
        return _Seen(pod_info, "", bool(bound))
    asks = workload_mix.asks_of(read.request, pod_info.amounts)
    return _Seen(pod_info, read.allocation_id, bool(bound), asks, _unbound(read))


def _unbound(read: Pod) -> _Unbound | None:
    maker = unbindable.maker(read.ref.namespace, read.ref.name, read.controller)
    if read.unschedulable is None or maker is None:
        return None
    words = read.unschedulable or "nothing"
    said = f"could not take {maker[1]} before, and is left out for a while; the scheduler said: {words}"
    return _Unbound(maker[0], errors.shortened(said, longest=MAX_WORDS), read.leaves)


def _seen(item: Mapping[str, Any] | None) -> _Seen | None:
    return None if item is None else item["seen"]
