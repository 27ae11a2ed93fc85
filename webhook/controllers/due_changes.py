"""Due changes: which allocations to confirm, to release, or to check with the API server. Pure.

A share is kept exactly as long as its pod lives; pods that cannot have been given one (`Pod.may_hold`) do not count. A
pod that our cache lacks is only suspected to be gone. The expiry time in a reservation comes from another wall clock.
As with Leases, times of two clocks are never compared: a reservation expires once the placer has observed it for a
whole lifetime (`FirstSeen`).
"""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gpushare.allocation import Allocation, NodeAllocation, PodRef
from gpushare.gpunode import GpuNode
from webhook.pods.stored_pod import Pod

NO_PODS: Final[Mapping[str, Pod]] = types.MappingProxyType({})
QUIET_SECONDS: Final = 1.0  # without another confirmation for the node, before confirmations are written
MAX_DELAY_SECONDS: Final = 5.0  # since the first

Confirmations = Mapping[str, Mapping[str, PodRef]]  # node -> allocation ID -> pod


@dataclasses.dataclass(frozen=True, slots=True)
class DueChanges:
    """Changes that are due; each entry is in at most one list.

    confirm: the pod that holds each allocation. release: allocations whose pod has ended, or uses another one. gone:
    allocations whose pod is missing from our cache, or came and went before it was confirmed. lapsed: reservations that
    no pod has claimed in time. next_expiry: when the next reservation expires.
    """

    confirm: Mapping[str, Mapping[str, PodRef]]
    release: tuple[NodeAllocation, ...]
    gone: tuple[NodeAllocation, ...]
    lapsed: tuple[NodeAllocation, ...]
    next_expiry: float | None


def find(
    nodes: Iterable[GpuNode], pods: Iterable[Pod], *, now: float, departed: Mapping[str, Pod] = NO_PODS
) -> DueChanges:
    """Find the changes due at `now`, by the clock of these nodes. departed: deleted pods by allocation ID."""
    by_uid = {pod.ref.uid: pod for pod in pods if pod.may_hold}
    claims = claims_of(by_uid.values())
    entries = [NodeAllocation(node.name, allocation) for node in nodes for allocation in node.allocations]
    spare = spare_ids(entries, by_uid)
    confirm: dict[str, dict[str, PodRef]] = collections.defaultdict(dict)
    release, gone, lapsed = [], [], []
    next_expiry: float | None = None
    for entry in entries:
        allocation = entry.allocation
        holder = by_uid.get(allocation.pod.uid) if allocation.pod.uid else claimant(allocation, claims)
        if holder is not None and (holder.has_ended or allocation.id in spare):
            release.append(entry)
        elif holder is not None:
            if not allocation.pod.uid:
                confirm[entry.node][allocation.id] = holder.ref
        elif allocation.pod.uid:
            gone.append(entry)
        elif (left := departed.get(allocation.id)) is not None and _is_for(allocation, left):
            gone.append(NodeAllocation(entry.node, dataclasses.replace(allocation, pod=left.ref)))
        elif allocation.reserved_until is None or allocation.reserved_until <= now:
            lapsed.append(entry)
        else:
            next_expiry = min(next_expiry or allocation.reserved_until, allocation.reserved_until)
    return DueChanges(confirm, tuple(release), tuple(gone), tuple(lapsed), next_expiry)


class DueChangesByNode:
    """The due changes of all nodes; each round recomputes only those of some nodes."""

    def __init__(self) -> None:
        # released, gone and lapsed allocations by node
        self._known: tuple[dict[str, list[NodeAllocation]], ...] = ({}, {}, {})
        self.unconfirmed: frozenset[str] = frozenset()  # nodes where reservations may expire

    def renew(self, nodes: Iterable[GpuNode], names: Collection[str], due: DueChanges) -> DueChanges:
        """Replace the due changes of `names`, which include gone nodes and `unconfirmed`; return those of all nodes."""
        for known, entries in zip(self._known, (due.release, due.gone, due.lapsed), strict=True):
            for name in known.keys() & names:
                del known[name]
            for entry in entries:
                known.setdefault(entry.node, []).append(entry)
        self.unconfirmed = frozenset(node.name for node in nodes if not all(held.pod.uid for held in node.allocations))
        release, gone, lapsed = (tuple(each for name in sorted(known) for each in known[name]) for known in self._known)
        return dataclasses.replace(due, release=release, gone=gone, lapsed=lapsed)


def claims_of(pods: Iterable[Pod]) -> Mapping[str, list[Pod]]:
    claims: dict[str, list[Pod]] = collections.defaultdict(list)
    for pod in sorted(pods, key=lambda pod: pod.created):
        if pod.allocation_id and pod.may_hold:
            claims[pod.allocation_id].append(pod)
    return claims


def claimant(allocation: Allocation, claims: Mapping[str, list[Pod]]) -> Pod | None:
    """Return the pod that an unconfirmed allocation was made for, or None.

    The annotation may be forged. So the namespace must match, and the name too if it was known when the allocation was
    made. Of several pods the first counts.
    """
    return next((pod for pod in claims.get(allocation.id, ()) if _is_for(allocation, pod)), None)


def _is_for(allocation: Allocation, pod: Pod) -> bool:
    return pod.ref.namespace == allocation.pod.namespace and allocation.pod.name in {"", pod.ref.name}


def still_holds(pod: Pod, holder: PodRef) -> bool:
    return pod.ref.uid == holder.uid and not pod.has_ended and pod.may_hold


def spare_ids(entries: Iterable[NodeAllocation], by_uid: Mapping[str, Pod]) -> frozenset[str]:
    """Return IDs of allocations that a pod has besides the one it uses, left by a placer that ended between two writes.

    The pod is trusted only about which one it uses. Until our cache shows that, none is spare: another placer may have
    ungated the pod already.
    """
    shares: dict[str, list[str]] = collections.defaultdict(list)
    held: dict[str, list[str]] = collections.defaultdict(list)
    for entry in entries:
        if entry.allocation.pod.uid in by_uid:
            (held if entry.allocation.is_backfill_reservation else shares)[entry.allocation.pod.uid].append(
                entry.allocation.id
            )
    spare: set[str] = set()
    for uid, ids in shares.items():
        named = by_uid[uid].allocation_id
        if named in ids:
            spare.update(identity for identity in ids if identity != named)
    for uid, ids in held.items():
        if uid in shares or not by_uid[uid].is_gated:
            spare.update(ids)  # it has the share that it waited for
    return frozenset(spare)


class FirstSeen:
    """When this placer first saw each unconfirmed allocation. lifetime_seconds: how long a share waits for its pod."""

    def __init__(self, lifetime_seconds: float) -> None:
        self._lifetime_seconds = lifetime_seconds
        self._since: dict[str, float] = {}  # ID of an unconfirmed allocation -> when we first saw it

    def timed(self, nodes: Iterable[GpuNode], *, now: float) -> list[GpuNode]:
        """Return the nodes with the expiry times of reservations by our clock; `now` in seconds."""
        nodes = list(nodes)
        unconfirmed = [entry.id for node in nodes for entry in node.allocations if not entry.pod.uid]
        self._since = {identity: self._since.get(identity, now) for identity in unconfirmed}
        timed = []
        for node in nodes:
            entries = [
                dataclasses.replace(entry, reserved_until=self._since[entry.id] + self._lifetime_seconds)
                if not entry.pod.uid
                else entry
                for entry in node.allocations
            ]
            is_timed = any(not entry.pod.uid for entry in entries)
            timed.append(dataclasses.replace(node, allocations=tuple(entries)) if is_timed else node)
        return timed


@dataclasses.dataclass(frozen=True, slots=True)
class _Pending:
    pods: Mapping[str, PodRef]
    first: float
    last: float

    @property
    def due_at(self) -> float:
        return min(self.last + QUIET_SECONDS, self.first + MAX_DELAY_SECONDS)


class ConfirmBatcher:
    """Delays confirmations, which are not urgent, so that those of a burst share one write."""

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}

    def due(self, confirm: Confirmations, *, now: float) -> tuple[Confirmations, float | None]:
        """Return the confirmations to write now, and when the next are due, or None; `now` in seconds.

        A pod that was deleted while its confirmation waited is confirmed at once: a confirmed allocation is released
        when its pod is gone, but an unclaimed reservation would be kept until it expires.
        """
        due: dict[str, Mapping[str, PodRef]] = {}
        pending: dict[str, _Pending] = {}
        for name in {*confirm, *self._pending}:
            pods, before = confirm.get(name, {}), self._pending.get(name)
            if before is None:
                pending[name] = _Pending(pods, now, now)
            elif before.due_at <= now or before.pods.keys() - pods.keys():
                due[name] = {**before.pods, **pods}
            elif pods.keys() == before.pods.keys():
                pending[name] = before
            else:
                pending[name] = _Pending(pods, before.first, now)
        self._pending = pending
        return due, min((batch.due_at for batch in pending.values()), default=None)
