"""The placer: runs the controllers in the elected replica, one after the other, whenever something has changed.

Controllers write by compare-and-swap, and the next placer finds what they have written. So two placers at the same time
would waste work but do no harm.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Final

from gpushare.cluster import retrying
from gpushare.refusal import Refusal
from webhook.controllers.allocation_controller import AllocationController
from webhook.controllers.borrow.borrow_controller import BorrowController
from webhook.controllers.demand.demand_controller import DemandController
from webhook.controllers.evictor import Evictor
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.gated_pods.waiting_units import PodIndex
from webhook.controllers.preemption.preemptor import Preemptor
from webhook.controllers.resizer import Resizer
from webhook.controllers.touched_nodes import TouchedNodes
from webhook.pods.stored_pod import Pod
from webhook.store.api_store import ApiStore

logger = logging.getLogger(__name__)

RESYNC_SECONDS: Final = 30.0  # for writes that the API server rejected, which no event announces again
MIN_PAUSE_SECONDS: Final = 0.2  # changes within this time share a round
MAX_PAUSE_SECONDS: Final = 2.0  # rounds are long while the API server is slow, and shares must still be released
Refusals = list[tuple[Pod, Refusal]]


@dataclasses.dataclass(frozen=True, slots=True)
class RoomMaker:
    """The steps that are turned on for pods that fit nowhere: a borrowed GPU, the place of others, then a new node.

    Each step gets only the pods that the one before does nothing for, so no pod is evicted while a GPU is lent. A pod
    whose placeholder stays unbound for long goes on to the next step, and one that preempts already borrows nothing.
    """

    borrow: BorrowController | None
    preemptor: Preemptor | None
    demand: DemandController | None

    async def reconcile(self, waiting: Refusals) -> Refusals:
        """Make room for the pods that wait; return them, with what is done for each or why nothing is."""
        asked: Refusals = []
        if self.borrow is not None:
            preempting = await self.preemptor.nominated_uids() if self.preemptor is not None else frozenset[str]()
            asked, others = await self.borrow.reconcile([each for each in waiting if each[0].ref.uid not in preempting])
            waiting = [*(entry for entry in waiting if entry[0].ref.uid in preempting), *others]
        if self.preemptor is not None:
            waiting = await self.preemptor.reconcile(waiting)
        if self.demand is not None:
            waiting = await self.demand.reconcile(waiting)
        return [*asked, *waiting]


@dataclasses.dataclass(eq=False)
class Placer:
    """Rounds of the controllers; `leads`: whether this replica is elected."""

    store: ApiStore
    touched_nodes: TouchedNodes
    allocations: AllocationController
    scheduler: GatedPodScheduler
    _: dataclasses.KW_ONLY
    leads: Callable[[], bool]
    evictor: Evictor | None = None
    resizer: Resizer | None = None
    demand: DemandController | None = None
    borrow: BorrowController | None = None
    preemptor: Preemptor | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._pods = self.store.pods
        self._index = PodIndex()
        self._woken = asyncio.Event()
        self._pause_seconds = 0.0
        self.store.on_change(self.wake)
        self._pods.subscribe(self._pod_changed)

    def wake(self) -> None:
        self._woken.set()

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        self.touched_nodes.update_pod(before, after)
        self._index.update(before, after)
        if before is None and after is not None:
            self.scheduler.pod_created(after)
        self.wake()

    async def run(self) -> None:
        await self.store.synced()
        await self._pods.synced.wait()
        while True:
            await self.step()

    async def step(self) -> None:
        await retrying.wait(self._woken, self._pause_seconds)
        started = time.monotonic()
        self._woken.clear()
        self._pause_seconds = RESYNC_SECONDS
        if self.leads():
            try:
                self._pause_seconds = await self.reconcile()
            except Exception:
                # A pod that the code does not expect must not stop the webhook, which shares this process.
                self.touched_nodes.requeue()
                logger.exception("A round of the placer failed; the next one retries")
        # Busy for at most half of the time, because the event loop also answers reviews.
        spent = time.monotonic() - started
        await asyncio.sleep(min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, spent)))

    async def reconcile(self) -> float:
        touched = self.touched_nodes.collect(self.store.stored(), also=self.allocations.unconfirmed)
        next_expiry = await self.allocations.reconcile(touched)
        next_resize = None
        if self.resizer is not None:
            # Before gated pods, because a share that grows cannot go to another GPU.
            try:
                next_resize = await self.resizer.reconcile(touched, self._pods.objects)
            except Exception:
                # Gated pods must not wait for a resizer that fails in every round.
                self.touched_nodes.requeue()
                logger.exception("The resizer failed; the round continues with the gated pods")
        if self.borrow is not None:
            await self.borrow.tend()
        if self.demand is not None:
            await self.demand.withdraw()
        next_placement = await self.scheduler.reconcile(self._index)
        next_eviction = None
        if self.evictor is not None:
            next_eviction = await self.evictor.reconcile(list(self._index.stuck.values()), touched)
        if self.touched_nodes.has_more:
            return 0.0
        next_demand = self.demand.recheck_seconds if self.demand is not None else None
        next_borrow = self.borrow.recheck_seconds if self.borrow is not None else None
        next_preemption = self.preemptor.recheck_seconds if self.preemptor is not None else None
        nexts = (next_resize, next_placement, next_eviction, next_demand, next_borrow, next_preemption)
        waits = (seconds for seconds in nexts if seconds is not None)
        pause = min([RESYNC_SECONDS, *waits])
        return pause if next_expiry is None else max(0.0, min(pause, next_expiry - self.clock()))
