"""Makes and keeps, in the ledger, the backfill reservations of the units that are entitled to one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpushare import errors, ledger
from gpushare.allocation import Allocation, NodeAllocation
from gpushare.gpunode import GpuNode
from gpushare.request import Request
from webhook.controllers.gated_pods import backfill
from webhook.controllers.gated_pods.existing_allocations import ExistingAllocations
from webhook.controllers.gated_pods.gang import Unit
from webhook.controllers.gated_pods.pod_index import PodIndex
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation, ledger_store, reservation

logger = logging.getLogger(__name__)

HOPELESS_SECONDS: Final = 60.0  # before the whole cluster is searched again for one that could run nowhere


class BackfillReservations:
    """See `backfill` for who is entitled, `holds` for what a hold is."""

    def __init__(self, ledger_now: ledger_store.LiveLedger, passes: backfill.Passes, bound: backfill.Bound) -> None:
        self._store = ledger_now
        self._bound = bound
        self._counter = passes
        self._passes: Mapping[str, int] = {}
        self._hopeless: dict[str, float] = {}  # uid of the unit's first member -> until when
        self._now = 0.0

    def begin(self, pods: PodIndex, units: Sequence[Unit], existing: ExistingAllocations, *, now: float) -> None:
        """A new round; `now` in Unix seconds."""
        self._now = now
        self._passes = self._counter.count(pods, units)
        # A clock that was put back makes nobody wait longer.
        kept = ((uid, until) for uid, until in self._hopeless.items() if uid in existing.orders)
        self._hopeless = {uid: until for uid, until in kept if now < until <= now + HOPELESS_SECONDS}

    async def hold(self, unit: Unit, asks: Sequence[tuple[Pod, Request]], existing: ExistingAllocations) -> str:
        """Hold for a unit that was refused what it is entitled to; return the end of a sentence that says so, or ""."""
        asked = [
            backfill_reservation.ReservingPod(pod.ref, request, self._store.chooser.unfit(pod.manifest))
            for pod, request in asks
        ]
        requests = {holder.pod.uid: holder.request for holder in asked}
        entries = [entry for holder in asked for entry in existing.holds.get(holder.pod.uid, ())]
        exceeds = self._store.chooser.exceeds_bound([(pod.ref, request) for pod, request in asks])
        if entries and (exceeds or not self._can_end(entries, asked)):
            await self._release(entries)
            for holder in asked:
                existing.holds.pop(holder.pod.uid, None)
            entries = []
        if not entries:
            entries = [] if exceeds else await self._make(unit, asked, existing)
        else:
            for name in sorted({entry.node for entry in entries}):
                view = self._store.view(name)
                if view is not None and backfill_reservation.grown(view.node, requests) is not view.node:
                    await self._commit(name, lambda node: backfill_reservation.grown(node, requests))
        nodes = ", ".join(sorted({entry.node for entry in entries}))
        return f"; what comes free there is held for it on {nodes}" if nodes else ""

    async def _make(
        self, unit: Unit, asked: Sequence[backfill_reservation.ReservingPod], existing: ExistingAllocations
    ) -> list[NodeAllocation]:
        first = unit.uids[0]
        waited_seconds = backfill.waited_seconds(unit, now=self._now)
        passes = self._passes.get(first, 0)
        if not backfill.is_entitled(self._bound, waited_seconds=waited_seconds, passes=passes):
            return []
        if first in self._hopeless or self._holds_enough(asked[0].pod.namespace, existing):
            return []
        targets = backfill_reservation.choose(self._store.views(), asked, new_id=reservation.new_id)
        if targets is None:
            self._hopeless[first] = self._now + HOPELESS_SECONDS
            return []
        requests = {holder.pod.uid: holder.request for holder in asked}
        made = []
        for target in targets:
            # In the view before anything else happens: whoever is next in the queue finds it there.
            if await self._commit(target.node, _adding(target.allocation, requests)):
                made.append(NodeAllocation(target.node, target.allocation))
                existing.holds.setdefault(target.allocation.pod.uid, []).append(made[-1])
        where = sorted({entry.node for entry in made})
        extra = {"pod": str(asked[0].pod), "nodes": where, "passes": passes, "seconds": round(waited_seconds)}
        logger.info("Holds what comes free for a pod that was passed over", extra=extra)
        return made

    def _holds_enough(self, namespace: str, existing: ExistingAllocations) -> bool:
        """Whether there are holds for as many units as there may be, of all namespaces or of this one."""
        holding = {
            existing.orders[uid]: entry.allocation.pod.namespace
            for uid, entries in existing.holds.items()
            for entry in entries
        }
        own = sum(name == namespace for name in holding.values())
        return len(holding) >= self._bound.most_holding or own >= self._bound.of_one_namespace

    def _can_end(self, entries: Sequence[NodeAllocation], asked: Sequence[backfill_reservation.ReservingPod]) -> bool:
        """Whether each of them would fit on what is held for it, once that is free."""
        by_uid = {entry.allocation.pod.uid: entry for entry in entries}
        if len(by_uid) != len(asked) or len(entries) != len(asked):
            return False
        for holder in asked:
            entry = by_uid[holder.pod.uid]
            view = self._store.view(entry.node)
            if view is None or not backfill_reservation.can_end(view, entry.allocation, holder):
                return False
        return True

    async def _release(self, entries: Sequence[NodeAllocation]) -> None:
        ids = {entry.allocation.id for entry in entries}
        for name in sorted({entry.node for entry in entries}):
            await self._commit(name, lambda node: _released(node, ids))

    async def _commit(self, name: str, change: Callable[[GpuNode], GpuNode]) -> bool:
        try:
            await self._store.commit(name, change)
        except (ledger_store.UnreachableError, errors.LedgerError) as error:
            logger.info("Could not write a hold", extra={"node": name, "err": str(error)})
            return False
        return True


def _adding(entry: Allocation, requests: Mapping[str, Request]) -> ledger_store.Change:
    def change(node: GpuNode) -> GpuNode:
        if any(known.id == entry.id for known in node.allocations):
            return node
        return backfill_reservation.grown(ledger.reserve(node, entry), requests)

    return change


def _released(node: GpuNode, ids: set[str]) -> GpuNode:
    return ledger.release(node, ids) if any(entry.id in ids for entry in node.allocations) else node
