"""Keeps the garbage collector from stopping a daemon to scan live objects again and again.

A copy of a large cluster is millions of long-lived objects without cycles. Python would scan all of them every now and
then, and answer no request meanwhile: about a second with 100,000 allocations. So objects that exist once the copy is
complete are moved out of the collector's sight, and new ones are scanned less often. The copy itself is never scanned:
it is decoded JSON, which has no cycles.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable
from typing import Final

logger = logging.getLogger(__name__)

THRESHOLDS: Final = (10_000, 5, 200)  # at most 50,000 at once, but all new ones after ten million
REPEAT_SECONDS: Final = 3600.0  # by then the new ones have become old


def freeze() -> None:
    """Collect once, and exempt the remaining objects from collection."""
    began = time.perf_counter()
    collected = gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    # Counting the exempt objects would take as long as scanning them.
    extra = {"collected": collected, "seconds": round(time.perf_counter() - began, 3)}
    logger.info("Excluded all present objects from garbage collection", extra=extra)


async def freeze_when_ready(ready: Awaitable[None]) -> None:
    """Freeze now, again once a daemon's copies are read, and every hour; never ends."""
    freeze()
    await ready
    gc.freeze()
    while True:
        await asyncio.sleep(REPEAT_SECONDS)
        freeze()
