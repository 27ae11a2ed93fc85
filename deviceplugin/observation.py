"""Looks at the GPUs, all the time, and publishes what there is: the one loop that asks the driver.

An event wakes it at once; everything that has none (a GPU lost without a word, one that came back) is found by looking
every few seconds. The driver's calls block, so they run in a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from deviceplugin import health, inventory, nvml
from deviceplugin.offer import Offer
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 5.0
BEGIN_ANEW_SECONDS: Final = 60.0  # while a GPU does not answer


class Observation:
    """Keeps `offer` true to the driver.

    node: the GPUNode as last seen, or None while there is none.
    known: set once `node` is what the cluster says.
    informed: set once a look could compare with it. A GPU that was lost before our start is known from there alone, so
        until then the offer may be short of it, and must not be written over what the cluster remembers.
    """

    def __init__(
        self,
        driver: nvml.Nvml,
        *,
        offer: Offer,
        node: Callable[[], GpuNode | None],
        known: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._offer = offer
        self._node = node
        self._known = known
        self.informed = asyncio.Event()
        self._clock = clock
        self._faults: health.Faults = {}
        self._silent: frozenset[str] = frozenset()  # UUIDs that did not answer the last time
        self._looked = self._began = clock()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.step()

    async def step(self) -> None:
        """Wait a little for an event, and look if there was one, or it is time, or there is news to compare with."""
        event = await asyncio.to_thread(self._driver.wait_for_xid, WAIT_SECONDS)
        if event is not None:
            self._note(event)
        is_time = self._clock() - self._looked >= LOOK_SECONDS
        if event is not None or is_time or self._known.is_set() > self.informed.is_set():
            await self.look()

    async def look(self) -> None:
        """Ask the driver for everything and publish it."""
        is_known, node = self._known.is_set(), self._node()
        known = {card.uuid: card for card in (*(node.gpus if node is not None else ()), *self._offer.gpus)}
        previous = tuple(known.values())
        seen = await asyncio.to_thread(self._see, previous)
        self._looked = self._clock()
        answering = frozenset(card.uuid for card in seen.gpus)
        self._faults = health.after_look(self._faults, returned=self._silent & answering, now=self._looked)
        self._silent = frozenset(card.uuid for card in previous) - answering
        held = {uuid for entry in (node.allocations if node is not None else ()) for uuid in entry.gpu_uuids}
        gpus = inventory.merged(previous, seen, faults=self._faults, held=held)
        _tell(self._offer.gpus, gpus)
        self._offer.publish(gpus)
        if is_known:
            self.informed.set()

    def _see(self, previous: tuple[Gpu, ...]) -> nvml.Snapshot:
        try:
            if self._silent and self._clock() - self._began >= BEGIN_ANEW_SECONDS:
                self._began = self._clock()
                self._driver.begin_anew()
            return self._driver.snapshot()
        except nvml.NvmlError as error:
            # A driver that does not answer at all vouches for no GPU.
            return nvml.Snapshot((), tuple(nvml.Unreadable(card.index, str(error)) for card in previous))

    def _note(self, event: nvml.Xid) -> None:
        logger.warning("The driver told of an XID", extra={"gpu": event.uuid, "xid": event.number})
        # One that the driver cannot name did not answer before either, and is unhealthy for that already.
        if event.uuid is not None:
            self._faults = health.after_xid(self._faults, uuid=event.uuid, number=event.number, now=self._clock())


def _tell(before: tuple[Gpu, ...], after: tuple[Gpu, ...]) -> None:
    known = {card.uuid: card for card in before}
    for card in after:
        was = known.get(card.uuid)
        extra = {"gpu": card.uuid, "index": card.index, "model": card.model}
        if was is None:
            logger.info("There is a GPU", extra={**extra, "memory_bytes": card.memory_bytes})
        if not card.healthy and (was is None or was.health_reason != card.health_reason):
            logger.warning("A GPU is not healthy", extra={**extra, "err": card.health_reason})
        if card.healthy and was is not None and not was.healthy:
            logger.info("A GPU is healthy again", extra=extra)
    for uuid in known.keys() - {card.uuid for card in after}:
        logger.warning("A GPU is gone", extra={"gpu": uuid})
