"""The event loop is the webhook's too: whoever has much to do lets reviews be answered in between."""

from __future__ import annotations

import asyncio
import math
import weakref
from typing import Final

WORK_SECONDS: Final = 0.01
REST_SECONDS: Final = 0.005

_rested: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float]] = weakref.WeakKeyDictionary()


async def let_others_run() -> None:
    """Between two pieces of work: let others have the event loop, and rest if the last rest is `WORK_SECONDS` ago.

    An answer takes several rounds of the event loop: to accept, to read, to write. `asyncio.sleep(0)` gives others one
    round only, so that an answer would wait for several pieces of work, one after the other.
    """
    loop = asyncio.get_running_loop()
    if loop.time() - _rested.get(loop, -math.inf) < WORK_SECONDS:
        await asyncio.sleep(0)
        return
    await asyncio.sleep(REST_SECONDS)
    _rested[loop] = loop.time()
