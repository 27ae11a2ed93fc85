"""Bounds on size, duration and in-flight bytes of requests, because any client in the cluster can connect to us."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

LARGEST_BYTES: Final = 4 << 20  # the API server takes requests up to 3 MiB; a review of a CREATE carries one object
PASSED_BYTES: Final = 16 << 20  # of a body that is too large, read and dropped
MAX_BYTES: Final = 64 << 20  # in flight, of all requests together
MAX_PARTS: Final = 400_000  # commas and brackets of a body
PART_BYTES: Final = 100  # memory that each of them may take once parsed
# Connections that are served at a time. Each may take a third of a MiB before its request is complete.
MAX_CONNECTIONS: Final = 512
MAX_OF_ADDRESS: Final = 256  # an API server has 200 mutating requests in flight by default
MAX_WAITING: Final = 1024
# As long as a review may take at the API server. On a busy machine, a shorter timeout would end live requests.
HANDSHAKE_SECONDS: Final = 10.0
HEADERS_SECONDS: Final = 10.0
# Includes the wait for a slot, and leaves a request that waited some time for its own work.
BODY_SECONDS: Final = 8.0
_AT_ONCE: Final = 1 << 16


class TooMuchError(Exception):
    """A request that is too large (status 413) or too slow (408); the message says which."""

    def __init__(self, message: str, status: int = 413) -> None:
        super().__init__(message)
        self.status = status


class LogRation:
    """Limits log lines that any client can cause to one per second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = -math.inf
        self._unsaid = 0

    def allow(self) -> int | None:
        """Return how many lines were dropped since the last one; None if this one is dropped too."""
        now = self._clock()
        if now < self._next:
            self._unsaid += 1
            return None
        self._next, unsaid, self._unsaid = now + 1.0, self._unsaid, 0
        return unsaid


class InFlightLimiter:
    """Limits the bytes of request bodies, and of what they are parsed into, until they are answered."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._left = max_bytes
        self._max = max_bytes
        self._changed = asyncio.Condition()

    @property
    def in_flight_bytes(self) -> int:
        return self._max - self._left

    @contextlib.asynccontextmanager
    async def body(self, request: web.Request) -> AsyncIterator[bytes]:
        reserved = 0
        content = bytearray()
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    while chunk := await request.content.read(_AT_ONCE):
                        if len(content) + len(chunk) > LARGEST_BYTES:
                            content.clear()
                            passed = 0  # a client that still sends while we close never reads our answer
                            while passed < PASSED_BYTES and (chunk := await request.content.read(_AT_ONCE)):
                                passed += len(chunk)
                            raise TooMuchError(f"the body is larger than {LARGEST_BYTES >> 20} MiB")
                        await self._reserve(len(chunk))
                        reserved += len(chunk)
                        content += chunk
                    parts = sum(content.count(mark) for mark in (b",", b"[", b"{"))
                    if parts > MAX_PARTS:
                        raise TooMuchError(f"the body has more than {MAX_PARTS} commas and brackets")
                    await self._reserve(parts * PART_BYTES)
                    reserved += parts * PART_BYTES
            except TimeoutError:
                raise TooMuchError(f"the body was not read in {BODY_SECONDS:g} s", 408) from None
            yield bytes(content)
        finally:
            self._left += reserved
            async with self._changed:
                self._changed.notify_all()

    async def _reserve(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._left >= count)
            self._left -= count
