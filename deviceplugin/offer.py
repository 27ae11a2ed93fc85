"""Offer: the GPUs as last seen, for everyone who has to follow them.

A value that can be waited on. Whoever follows sees the newest one, not every one: a slow reader of ListAndWatch must
not collect a backlog of lists that are no longer true.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gpushare.gpu import Gpu


class Offer:
    """The node's GPUs now; `publish` tells all followers of a change."""

    def __init__(self, gpus: tuple[Gpu, ...] = ()) -> None:
        self.gpus = gpus
        self._next = asyncio.Event()

    def publish(self, gpus: tuple[Gpu, ...]) -> None:
        """Make `gpus` the offer; nothing happens if they are what they were."""
        if gpus == self.gpus:
            return
        self.gpus = gpus
        self._next.set()
        self._next = asyncio.Event()

    async def follow(self) -> AsyncIterator[tuple[Gpu, ...]]:
        """The GPUs now, and again after each change, for ever."""
        while True:
            changed, told = self._next, self.gpus
            yield told
            if self.gpus is told:
                await changed.wait()
