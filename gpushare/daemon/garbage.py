"""Garbage: keeps Python's garbage collector from stopping a daemon to scan long-lived data again and again.

A copy of a large cluster is millions of objects that live long and have no cycles. The collector would scan all of them
every now and then, and block the daemon meanwhile: for about a second with 100,000 allocations. So once the copy is
complete, its objects are frozen (`gc.freeze`), and new objects are scanned less often. The copy itself needs no scan
before, because parsed JSON has no cycles.
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
    """Collect once, and freeze what is left."""
    began = time.perf_counter()
    collected = gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    # Counting the remaining objects alone would take as long as scanning them.
    extra = {"collected": collected, "seconds": round(time.perf_counter() - began, 3)}
    logger.info("Froze the objects that the garbage collector has left", extra=extra)


async def keep(ready: Awaitable[None]) -> None:
    """Settle at once, freeze the daemon's data once it has been read, and settle every hour; never ends."""
    settle()
    await ready
    gc.freeze()
    while True:
        await asyncio.sleep(AGAIN_SECONDS)
        settle()
