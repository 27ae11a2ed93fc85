"""Bounds: how long and how much a connection may send. Anybody who reaches our port may connect; we are one process.

A connection that nobody has used is left alone, as the API server may be about to: one that has begun a request has to
end it in time. What is in hand of all requests together is bounded too: whoever comes while it is full waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from aiohttp import web

LARGEST_BYTES: Final = 4 << 20  # the API server takes requests up to 3 MiB; in a review of a CREATE there is one object
PASSED_BYTES: Final = 16 << 20  # read and kept nowhere, of a body that is too large
MOST_BYTES: Final = 64 << 20  # in hand, of all requests together
MOST_PARTS: Final = 400_000  # commas and brackets of a body
PART_BYTES: Final = 100  # that each of them may come to in memory
HANDSHAKE_SECONDS: Final = 5.0
HEADERS_SECONDS: Final = 5.0
BODY_SECONDS: Final = 5.0  # the time that it waits for its turn among it
_AT_ONCE: Final = 1 << 16


class TooMuchError(Exception):
    """More than there may be (status 413), or not in time (408); the message says which."""

    def __init__(self, message: str, status: int = 413) -> None:
        super().__init__(message)
        self.status = status


class InHand:
    """Bodies of requests, and what they are read into, until they are answered."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._left = most_bytes
        self._most = most_bytes
        self._changed = asyncio.Condition()

    @property
    def taken_bytes(self) -> int:
        """How many bytes of bodies are in memory now."""
        return self._most - self._left

    @contextlib.asynccontextmanager
    async def body(self, request: web.Request) -> AsyncIterator[bytes]:
        """The body of a request. Raises TooMuchError."""
        taken = 0
        content = bytearray()
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    while chunk := await request.content.read(_AT_ONCE):
                        if len(content) + len(chunk) > LARGEST_BYTES:
                            content.clear()
                            await _pass_over(request)
                            raise TooMuchError(f"the body is larger than {LARGEST_BYTES >> 20} MiB")
                        await self._take(len(chunk))
                        taken += len(chunk)
                        content += chunk
                    parts = sum(content.count(mark) for mark in (b",", b"[", b"{"))
                    if parts > MOST_PARTS:
                        raise TooMuchError(f"the body has more than {MOST_PARTS} commas and brackets")
                    await self._take(parts * PART_BYTES)
                    taken += parts * PART_BYTES
            except TimeoutError:
                raise TooMuchError(f"the body was not read in {BODY_SECONDS:g} s", 408) from None
            yield bytes(content)
        finally:
            self._left += taken
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._left >= count)
            self._left -= count


async def _pass_over(request: web.Request) -> None:
    """Read what else there is, up to a bound: whoever still sends while we close never reads our answer."""
    passed = 0
    while passed < PASSED_BYTES and (chunk := await request.content.read(_AT_ONCE)):
        passed += len(chunk)


class Timed(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, and ends a connection whose request is never whole."""

    def __init__(self, inner: asyncio.Protocol, seconds: float, ended: Callable[[], object]) -> None:
        """`ended`: called when the connection is no more."""
        self._inner = inner
        self._seconds = seconds
        self._ended = ended
        self._transport: asyncio.BaseTransport | None = None
        self._ends: asyncio.TimerHandle | None = None
        self._is_asked = False

    def asked(self, *, is_asked: bool) -> None:
        """A request has come whole, as far as its headers; or it was answered."""
        self._is_asked = is_asked
        self._forget()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio.Protocol: the clock starts."""
        self._transport = transport
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """As asyncio.Protocol: a part of a request has come."""
        if not self._is_asked and self._ends is None and self._transport is not None:
            self._ends = asyncio.get_running_loop().call_later(self._seconds, self._transport.close)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The other side sends no more."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """The other side does not read."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """As asyncio.Protocol: the client reads again."""
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio.Protocol: the connection ended."""
        self._forget()
        self._ended()
        self._inner.connection_lost(error)

    def _forget(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None


class ConnectionWatch:
    """Watches over all connections of a server."""

    def __init__(self, seconds: float = HEADERS_SECONDS) -> None:
        self._seconds = seconds
        self._known: dict[asyncio.Protocol, Timed] = {}

    def over(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], Timed]:
        """What makes a protocol, made to keep time."""

        def timed() -> Timed:
            inner = make()
            self._known[inner] = timed = Timed(inner, self._seconds, lambda: self._known.pop(inner, None))
            return timed

        return timed

    @contextlib.contextmanager
    def asked(self, request: web.Request) -> Iterator[None]:
        """While a request is worked on, its connection may be silent."""
        connection = self._known.get(request.protocol)
        if connection is not None:
            connection.asked(is_asked=True)
        try:
            yield
        finally:
            if connection is not None:
                connection.asked(is_asked=False)
