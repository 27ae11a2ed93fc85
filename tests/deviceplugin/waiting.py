"""Waiting for what a test cannot be told of, bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def until(condition: Callable[[], Any], *, seconds: float = 20.0) -> None:
    """Return once `condition` is true; TimeoutError if that takes too long."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0.01)


async def until_async(condition: Callable[[], Awaitable[Any]], expected: Any, *, seconds: float = 20.0) -> None:
    """Return once `condition` gives what is expected; TimeoutError if that takes too long."""
    async with asyncio.timeout(seconds):
        while await condition() != expected:  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0.05)
