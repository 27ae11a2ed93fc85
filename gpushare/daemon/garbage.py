"""Garbage: a collector that does not stop a daemon to look, again and again, at what is no garbage.

A copy of a large cluster is millions of objects that live long and have no cycles. Python would go through all of them
every now and then, and answer nobody for as long as that takes: with 100,000 allocations about a second. So what is
there once the copy is complete is taken out of the collector's sight, and what is new is looked at less often. Nobody
looks through the copy itself before: it is made of what was sent to us, and that has no cycles.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable
from typing import Final

logger = logging.getLogger(__name__)

THRESHOLDS: Final = (10_000, 5, 200)  # no more than 50,000 at once, but all that is new after ten million
AGAIN_SECONDS: Final = 3600.0  # by then what was new has become old


def settle() -> None:
    """Collect once; what is left then is not looked at again."""
    began = time.perf_counter()
    collected = gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    # To count what is left alone would take as long as to look through it.
    extra = {"collected": collected, "seconds": round(time.perf_counter() - began, 3)}
    logger.info("The garbage collector leaves alone what is there", extra=extra)


async def keep(ready: Awaitable[None]) -> None:
    """Settle at once, leave alone what a daemon keeps when it has been read, and settle every hour; never ends."""
    settle()
    await ready
    gc.freeze()
    while True:
        await asyncio.sleep(AGAIN_SECONDS)
        settle()
