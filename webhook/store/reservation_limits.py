"""Reservation limits: why nothing is reserved for a pod before the API server has stored it.

A share is reserved before the API server stores its pod, and checks that run after the webhook may reject the pod. Then
other pods cannot have the share until the reservation expires. Therefore nothing is reserved for a pod that the
ResourceQuotas will reject (`QuotaAllowances`), or whose namespace has too many unconfirmed reservations
(`UnconfirmedReservations`). Such a pod is admitted gated, and the placer places it once it is stored.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from gpushare import ledger, pod, resource_quota
from gpushare.allocation import Allocation
from gpushare.cluster import api_client, informer
from gpushare.cluster import object_store as objects
from gpushare.gpunode import GpuNode
from gpushare.placement import exclusive_gpus
from gpushare.refusal import Cause, Refusal
from gpushare.request import Request

QUOTAS_PATH: Final = "/api/v1/resourcequotas"
MAX_FRACTION: Final = 8  # one namespace may reserve 1/8 of all GPUs for pods that are not stored yet,
MIN_GPUS: Final = 2.0  # or this many
MAX_FRACTION_TOGETHER: Final = 2  # and all namespaces together 1/2
OVERDUE_SECONDS: Final = 5.0  # a pod is usually stored and seen in well under a second
MAX_EXPIRED: Final = 3
MAX_EXPIRED_TOGETHER: Final = 9
EXPIRED_SECONDS: Final = 3600.0


class QuotaAllowances:
    """The amounts that ResourceQuotas leave, as last counted; the placer corrects a refusal that was outdated."""

    def __init__(self, api: api_client.ApiClient) -> None:
        self._by_namespace: dict[str, dict[str, resource_quota.Allowance]] = collections.defaultdict(dict)
        self.informer = informer.Informer(api, QUOTAS_PATH, transform=trim_quota)
        self.informer.subscribe(self._changed)
        self.run = self.informer.run
        self.synced = self.informer.synced.wait

    def lacks(self, namespace: str, asked: Mapping[str, int]) -> str | None:
        lacking = (allowance.lacks(asked) for allowance in self._by_namespace.get(namespace, {}).values())
        return next((sentence for sentence in lacking if sentence is not None), None)

    def uncounted(self, namespace: str, manifest: pod.PodJson, request: Request) -> str | None:
        return resource_quota.uncounted(self._by_namespace.get(namespace, {}).values(), manifest, request)

    def evaded(self, namespace: str, replaced: Collection[str]) -> str | None:
        return resource_quota.evaded(self._by_namespace.get(namespace, {}).values(), replaced)

    def bound(self, namespace: str) -> exclusive_gpus.ExclusiveBound | None:
        return exclusive_gpus.bound_of(namespace, self._by_namespace.get(namespace, {}).values())

    def _changed(self, change: objects.Delta) -> None:
        namespace, name = change.key.namespace, change.key.name
        allowance = change.new["allowance"] if change.new is not None else None
        if allowance is not None:
            self._by_namespace[namespace][name] = allowance
        elif self._by_namespace[namespace].pop(name, None) is not None and not self._by_namespace[namespace]:
            del self._by_namespace[namespace]


def trim_quota(item: dict[str, Any]) -> dict[str, Any]:
    """Keep what admission needs of a ResourceQuota; `allowance` is None if it counts only some of the pods."""
    metadata = item["metadata"]
    return {
        "metadata": {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata},
        "allowance": resource_quota.read(item),
    }


@dataclasses.dataclass(slots=True)
class _Reserved:
    namespace: str
    gpus: float
    since: float
    is_seen: bool
    is_stored: bool = False


class UnconfirmedReservations:
    """Limits reservations whose pods have not been seen yet.

    A namespace may have only so much reserved at a time, nothing more while one of its pods is overdue, and nothing for
    an hour after several of its reservations expired. One that ends in the first half of its lifetime was released by
    us. Any client that reaches the port can make up reviews of any namespace, so all namespaces together are limited
    too: a pod that is stored is not made up. clock: seconds, of any origin. is_seen: whether a pod names this
    allocation.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        is_seen: Callable[[str], bool] = lambda _: False,
        *,
        lifetime_seconds: float = 0.0,
    ) -> None:
        self._clock = clock
        self._early_seconds = lifetime_seconds / 2
        self._is_seen = is_seen
        self._known: dict[str, _Reserved] = {}  # by ID
        self._by_node: dict[str, set[str]] = {}
        self._waiting: dict[str, dict[str, _Reserved]] = {}  # by namespace, reservations whose pods were not seen yet
        self._expiries: dict[str, collections.deque[float]] = {}
        self._all_expiries: collections.deque[float] = collections.deque(maxlen=MAX_EXPIRED_TOGETHER)
        self._gpus: dict[str, int] = {}

    def update(self, view: GpuNode, stored: GpuNode) -> None:
        """Record a node that has changed: `view` with pending writes of this process, and as it is stored."""
        now = self._clock()
        sizes = {gpu.uuid: gpu.memory_bytes for gpu in view.gpus}
        written = {entry.id for entry in stored.allocations}
        unconfirmed = set()
        for entry in view.allocations:
            if entry.pod.uid or entry.is_backfill_reservation:
                continue
            unconfirmed.add(entry.id)
            if entry.id not in self._known:
                reserved = _Reserved(entry.pod.namespace, _gpus(entry, sizes), now, self._is_seen(entry.id))
                self._known[entry.id] = reserved
                if not reserved.is_seen:
                    self._waiting.setdefault(reserved.namespace, {})[entry.id] = reserved
            self._known[entry.id].is_stored |= entry.id in written
        there = {entry.id for entry in view.allocations}
        for identity in self._by_node.get(view.name, set()) - unconfirmed:
            reserved = self._end(identity)
            is_late = now - reserved.since >= self._early_seconds
            if reserved.is_stored and not reserved.is_seen and identity not in there and is_late:
                namespace, expiries = reserved.namespace, self._expiries
                self._all_expiries.append(now)
                expiries.setdefault(namespace, collections.deque(maxlen=MAX_EXPIRED)).append(now)
                self._expiries = {name: at for name, at in expiries.items() if now - at[-1] < EXPIRED_SECONDS}
        self._by_node[view.name] = unconfirmed
        self._gpus[view.name] = len(view.gpus)

    def forget(self, node: str) -> None:
        self._gpus.pop(node, None)
        for identity in self._by_node.pop(node, set()):
            self._end(identity)

    def seen(self, allocation_id: str) -> None:
        reserved = self._known.get(allocation_id)
        if reserved is not None:
            reserved.is_seen = True
            self._stop_waiting(allocation_id, reserved)

    def why_not(self, namespace: str) -> Refusal | None:
        """Return why nothing more is reserved for the namespace now, or None."""
        why = next(self._reasons_against(namespace), None)
        return None if why is None else Refusal(why, cause=Cause.UNCLAIMED)

    def _reasons_against(self, namespace: str) -> Iterator[str]:
        now = self._clock()
        if sum(now - at < EXPIRED_SECONDS for at in self._expiries.get(namespace, ())) >= MAX_EXPIRED:
            yield (
                f"{MAX_EXPIRED} pods of this namespace were rejected after placement in the last hour, so its pods are "
                "now placed only once they exist"
            )
        together = self._all_expiries
        if len(together) == MAX_EXPIRED_TOGETHER and now - together[0] < EXPIRED_SECONDS:
            yield (
                f"{MAX_EXPIRED_TOGETHER} pods of several namespaces were rejected after placement in the last hour, so "
                "pods are now placed only once they exist"
            )
        waiting = self._waiting.get(namespace, {}).values()
        if any(now - reservation.since > OVERDUE_SECONDS for reservation in waiting):
            yield (
                "another pod of this namespace that was placed does not exist yet, so its pods are now placed only "
                "once they exist"
            )
        gpus = sum(self._gpus.values())
        everywhere = (reservation for of_one in self._waiting.values() for reservation in of_one.values())
        for reserved, part, whose in (
            (waiting, MAX_FRACTION, "pods of this namespace"),
            (everywhere, MAX_FRACTION_TOGETHER, "pods of all namespaces"),
        ):
            most = max(MIN_GPUS, gpus / part)
            if sum(reservation.gpus for reservation in reserved) >= most:
                yield (
                    f"{most:g} GPUs are reserved for {whose} that do not exist yet, so this pod is placed only once it "
                    "exists"
                )

    def _end(self, identity: str) -> _Reserved:
        reserved = self._known.pop(identity)
        self._stop_waiting(identity, reserved)
        return reserved

    def _stop_waiting(self, identity: str, reserved: _Reserved) -> None:
        waiting = self._waiting.get(reserved.namespace, {})
        waiting.pop(identity, None)
        if not waiting:
            self._waiting.pop(reserved.namespace, None)


def _gpus(entry: Allocation, sizes: dict[str, int]) -> float:
    held = {uuid: ledger.held(entry, uuid) for uuid in entry.gpu_uuids}
    return sum(
        max(request_percent / 100, memory_bytes / sizes[uuid] if sizes.get(uuid) else 0.0)
        for uuid, (request_percent, memory_bytes) in held.items()
    )
