"""Polls conditions that tests cannot subscribe to, with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def until(condition: Callable[[], Any], *, seconds: float = 20.0) -> None:
    """Wait until `condition` is true. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0.01)


async def until_async(condition: Callable[[], Awaitable[Any]], expected: Any, *, seconds: float = 20.0) -> None:
    """Wait until `condition` returns the expected value. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while await condition() != expected:  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0.1)
