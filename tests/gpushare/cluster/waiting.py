"""Polling for conditions that send no notification."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(happened: Callable[[], bool | Awaitable[bool]], *, seconds: float = 30.0) -> None:
    """Wait until `happened()` is true; raise TimeoutError after too long."""
    async with asyncio.timeout(seconds):
        while True:
            result = happened()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(0.02)
