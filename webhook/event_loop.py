"""The event loop is the webhook's too: whoever has much to do lets reviews be answered in between."""

from __future__ import annotations

import asyncio
from typing import Final

REST_SECONDS: Final = 0.005


async def let_others_run() -> None:
    """Rest after a piece of work of some ten milliseconds.

    An answer takes several rounds of the event loop: to accept, to read, to write. `asyncio.sleep(0)` gives others one
    round only, so that an answer would wait for several pieces of work, one after the other.
    """
    await asyncio.sleep(REST_SECONDS)
