"""Writes the backfill reservations of the units that are entitled to one, and keeps them up to date."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare import ledger
from gpushare.allocation import Allocation, NodeAllocation
from gpushare.gpunode import GpuNode
from gpushare.request import Request
from webhook.controllers import queue
from webhook.controllers.gated_pods import fairness
from webhook.controllers.gated_pods.waiting_units import ExistingAllocations, PodIndex, Unit
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation, ledger_store, reservation

logger = logging.getLogger(__name__)

HOPELESS_SECONDS: Final = 60.0  # before the cluster is searched again for a unit that fits nowhere, even if it is empty


@dataclasses.dataclass(eq=False)
class BackfillReservations:
    """Reserves freed capacity for units that pods overtake, or that wait for lent memory.

    `fairness` says which units are overtaken; `backfill_reservation` makes the entries.
    """

    store: ledger_store.LiveLedger
    overtakes: fairness.OvertakeCounter
    limits: fairness.OvertakeLimits
    preempts: bool = False  # whether the preemptor looks after the reservations that it makes

    def __post_init__(self) -> None:
        self._overtakes: Mapping[str, int] = {}
        # UID of the unit's first member, and whether it was overtaken -> until when
        self._hopeless: dict[tuple[str, bool], float] = {}
        self._now = 0.0

    def begin(self, pods: PodIndex, units: Sequence[Unit], existing: ExistingAllocations, *, now: float) -> None:
        self._now = now
        self._overtakes = self.overtakes.count(pods, units)
        waiting = ((unit, until) for unit, until in self._hopeless.items() if unit[0] in existing.orders)
        # A clock that was set back must not extend the pause.
        self._hopeless = {unit: until for unit, until in waiting if now < until <= now + HOPELESS_SECONDS}

    async def reserve(self, unit: Unit, requests: Sequence[tuple[Pod, Request]], existing: ExistingAllocations) -> str:
        """Make or enlarge the reservation of a refused unit; return the end of its reason, empty without one."""
        chooser = self.store.chooser
        pods = [
            backfill_reservation.ReservingPod(
                pod.ref, request, chooser.node_filter(pod.manifest), chooser.kinds(request)
            )
            for pod, request in requests
        ]
        by_uid = {pod.ref.uid: pod.request for pod in pods}
        entries = [entry for pod in pods for entry in existing.reserved.get(pod.ref.uid, ())]
        exceeds = chooser.exceeds_bound([(pod.ref, request) for pod, request in requests])
        if entries and (exceeds or not self._can_fit(entries, pods)):
            ids = {entry.allocation.id for entry in entries}
            for name in sorted({entry.node for entry in entries}):
                await self._commit(name, lambda node: ledger.release(node, ids) if _has_any(node, ids) else node)
            for pod in pods:
                existing.reserved.pop(pod.ref.uid, None)
            entries = []
        if not entries:
            entries = [] if exceeds else await self._make(unit, pods, existing)
        else:
            for name in sorted({entry.node for entry in entries}):
                view = self.store.view(name)
                if view is not None and backfill_reservation.grown(view.node, by_uid) is not view.node:
                    await self._commit(name, lambda node: backfill_reservation.grown(node, by_uid))
        nodes = ", ".join(sorted({entry.node for entry in entries}))
        return f"; freed capacity is reserved for it on {nodes}" if nodes else ""

    async def _make(
        self, unit: Unit, pods: Sequence[backfill_reservation.ReservingPod], existing: ExistingAllocations
    ) -> list[NodeAllocation]:
        first = unit.uids[0]
        waited_seconds = queue.age_seconds(unit.order[1], self._now)  # since it was complete
        overtakes = self._overtakes.get(first, 0)
        is_patient, is_overtaken = waited_seconds >= self.limits.patience_seconds, overtakes > 0
        if overtakes < self.limits.max_overtakes and not is_patient:
            return []
        if (first, is_overtaken) in self._hopeless or self._is_at_limit(pods[0].ref.namespace, existing):
            return []
        views, most_missing = self.store.views(), math.inf
        if not is_overtaken:  # no pod has the capacity that it needs, but loans may
            views, most_missing = backfill_reservation.without_loans(views), 0.0
        targets = backfill_reservation.choose(views, pods, new_id=reservation.new_id, most_missing=most_missing)
        if targets is None:
            self._hopeless[first, is_overtaken] = self._now + HOPELESS_SECONDS
            return []
        requests = {pod.ref.uid: pod.request for pod in pods}
        made = []
        for target in targets:
            # In our view at once, so that the next unit in the queue respects it.
            if await self._commit(target.node, functools.partial(_adding, target.allocation, requests)):
                made.append(NodeAllocation(target.node, target.allocation))
                existing.reserved.setdefault(target.allocation.pod.uid, []).append(made[-1])
        nodes = sorted({entry.node for entry in made})
        extra = {"pod": str(pods[0].ref), "nodes": nodes, "overtakes": overtakes, "seconds": round(waited_seconds)}
        logger.info("Reserved freed capacity for a pod that has waited long", extra=extra)
        return made

    def _is_at_limit(self, namespace: str, existing: ExistingAllocations) -> bool:
        """Whether as many units have reservations as may have, in all namespaces or in this one."""
        reserving = {
            existing.orders[uid]: entry.allocation.pod.namespace
            for uid, entries in existing.reserved.items()
            for entry in entries
        }
        own = sum(name == namespace for name in reserving.values())
        return len(reserving) >= self.limits.max_reserving or own >= self.limits.max_reserving_per_namespace

    def _can_fit(self, entries: Sequence[NodeAllocation], pods: Sequence[backfill_reservation.ReservingPod]) -> bool:
        by_uid = {entry.allocation.pod.uid: entry for entry in entries}
        if self.preempts and all(entry.allocation.is_nomination for entry in entries):
            return True
        if len(by_uid) != len(pods) or len(entries) != len(pods):
            return False
        pairs = [(pod, by_uid[pod.ref.uid], self.store.view(by_uid[pod.ref.uid].node)) for pod in pods]
        return all(view and backfill_reservation.can_fit(view, entry.allocation, pod) for pod, entry, view in pairs)

    async def _commit(self, name: str, change: ledger_store.Change) -> bool:
        failure, level = "Could not write a backfill reservation", logging.INFO
        return await ledger_store.try_commit(self.store, name, change, failure, level=level) is not None


def _adding(entry: Allocation, requests: Mapping[str, Request], node: GpuNode) -> GpuNode:
    if _has_any(node, {entry.id}):
        return node
    return backfill_reservation.grown(ledger.reserve(node, entry), requests)


def _has_any(node: GpuNode, ids: set[str]) -> bool:
    return any(entry.id in ids for entry in node.allocations)
