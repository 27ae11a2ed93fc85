"""The placer: of all replicas the elected one; has the controllers work, whenever something has changed.

Everything it does is written by compare-and-swap and found again by the next one, so that two placers at once, should
it ever come to that, waste work and do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from webhook.controllers.allocations.allocation_controller import AllocationController
from webhook.controllers.evictor import Evictor
from webhook.controllers.gated_pods.gates import Gates
from webhook.controllers.gated_pods.pod_index import PodIndex
from webhook.controllers.resize.resizer import Resizer
from webhook.pods.stored_pod import Pod
from webhook.store.api_store import ApiStore

logger = logging.getLogger(__name__)

RESYNC_SECONDS: Final = 30.0  # for what an API server refused, and no event will bring back
BREATH_SECONDS: Final = 0.2  # changes of one moment are looked at together
MAX_BREATH_SECONDS: Final = 2.0  # a look is long when the API server is slow, and then shares wait to be given back


class Placer:
    """`leads` says whether we are the elected one."""

    def __init__(
        self,
        ledger_now: ApiStore,
        allocations_controller: AllocationController,
        gates: Gates,
        *,
        leads: Callable[[], bool],
        evictions: Evictor | None = None,
        resizer: Resizer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = ledger_now
        self._pods = ledger_now.pods
        self._allocations_controller = allocations_controller
        self._gates = gates
        self._leads = leads
        self._evictions = evictions
        self._resizer = resizer
        self._clock = clock
        self._index = PodIndex()
        self._woken = asyncio.Event()
        self._sleep_seconds = 0.0
        ledger_now.on_change(self.wake)
        self._pods.subscribe(self._pod_changed)

    def wake(self) -> None:
        """Something has changed: the next round is due."""
        self._woken.set()

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        self.wake()
        self._index.pod(before, after)
        if before is None and after is not None:
            self._gates.came(after)

    async def run(self) -> None:
        """Work whenever something has changed, until cancelled."""
        await self._store.synced()
        await self._pods.synced.wait()
        while True:
            await self.step()

    async def step(self) -> None:
        """Wait until there may be something to do, and do it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._sleep_seconds):
                await self._woken.wait()
        started = time.monotonic()
        self._woken.clear()
        self._sleep_seconds = RESYNC_SECONDS
        if self._leads():
            try:
                self._sleep_seconds = await self.work()
            except Exception:
                # One pod that nobody foresaw must not take the webhook down, which shares this process.
                self._allocations_controller.look_again()
                logger.exception("The placer failed, and goes on")
        # Never busy for more than half of the time: the event loop is the webhook's too.
        spent = time.monotonic() - started
        await asyncio.sleep(min(MAX_BREATH_SECONDS, max(BREATH_SECONDS, spent)))

    async def work(self) -> float:
        """Do all that can be done now; return in how many seconds to look again if nothing changes before."""
        touched = self._allocations_controller.look()
        next_expiry = await self._allocations_controller.keep(touched)
        resize_again = None
        if self._resizer is not None:
            # Before the gated ones: what grows is on a GPU already and cannot go anywhere else.
            try:
                resize_again = await self._resizer.resize(touched, self._pods.objects)
            except Exception:
                self._allocations_controller.look_again()
                # They have no part in it, and would all wait for ever.
                logger.exception("The resizer failed, and the gated pods have their turn")
        tell_again = await self._gates.open_all(self._index)
        stuck_again = None
        if self._evictions is not None:
            stuck_again = await self._evictions.look(list(self._index.stuck.values()), touched)
        if self._allocations_controller.has_more:
            return 0.0
        waits = (again for again in (resize_again, tell_again, stuck_again) if again is not None)
        pause = min([RESYNC_SECONDS, *waits])
        return pause if next_expiry is None else max(0.0, min(pause, next_expiry - self._clock()))
