"""Yields the event loop during long work, because it also answers reviews."""

from __future__ import annotations

import asyncio
import math
import weakref
from typing import Final

WORK_SECONDS: Final = 0.01
REST_SECONDS: Final = 0.005

_rested: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float]] = weakref.WeakKeyDictionary()


async def let_others_run() -> None:
    """Yield to other tasks, and sleep if the last sleep is `WORK_SECONDS` ago.

    An answer takes several rounds of the event loop: accept, read, write. `asyncio.sleep(0)` yields for one round only,
    so an answer would wait for several pieces of work.
    """
    loop = asyncio.get_running_loop()
    if loop.time() - _rested.get(loop, -math.inf) < WORK_SECONDS:
        await asyncio.sleep(0)
        return
    await asyncio.sleep(REST_SECONDS)
    _rested[loop] = loop.time()
