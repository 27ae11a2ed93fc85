"""The server's connections: how long each may take for a request, and how an idle one is ended without losing a review.

One that nobody has used is left alone, as the API server may be about to: one that has begun a request has to end it in
time. Who ends an idle connection cannot know whether a review is on its way on it, and the API server sends no review
again that got lost. So what is said last on an idle connection is an answer, to a review that may be on its way; and it
is the other side that closes it.
"""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from webhook import bounds

# kube-apiserver sends a review again, as long as it has time, that was answered by 429 or 5xx and `Retry-After`
# (client-go, rest/with_retry.go). Where no review is on its way, it closes the connection and logs an unsolicited
# response (net/http, transport.go). Were the socket closed here, the rest of a review that is on its way would be
# answered by a reset, which the API server may see first.
SEND_AGAIN: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
DISMISS_SECONDS: Final = 2.0  # for the other sides to read it, and to end what they have begun
LOOK_SECONDS: Final = 0.02


class Timed(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, and ends a connection whose request is never whole."""

    def __init__(self, inner: asyncio.Protocol, watch: ConnectionWatch) -> None:
        self.inner = inner
        self._is_dismissed = False
        self.is_used = False
        self._watch = watch
        self._transport: asyncio.Transport | None = None
        self._ends: asyncio.TimerHandle | None = None
        self._is_asked = False

    def asked(self, *, is_asked: bool) -> None:
        """A request has come whole, as far as its headers; or it was answered."""
        self._is_asked = is_asked
        self.is_used = True
        self._forget()

    def dismiss(self) -> None:
        """Have the other side end the connection if it is idle: a review that is on its way on it is sent again."""
        is_busy = self._is_asked or self._ends is not None
        if self._transport is None or is_busy or self._is_dismissed or self._transport.is_closing():
            return
        self._is_dismissed = True
        self._transport.write(SEND_AGAIN)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio.Protocol: its handshake is done."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a connection over {type(transport).__name__}: not one that can be written to")
        self._transport = transport
        self.inner.connection_made(transport)
        self._watch.made(self)

    def data_received(self, data: bytes) -> None:
        """As asyncio.Protocol: a part of a request has come."""
        if self._is_dismissed:
            return  # it was answered already
        if not self._is_asked and self._ends is None and self._transport is not None:
            self._ends = asyncio.get_running_loop().call_later(self._watch.seconds, self._transport.close)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The other side sends no more."""
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        """The other side does not read."""
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """As asyncio.Protocol: the client reads again."""
        self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio.Protocol: the connection ended."""
        self._forget()
        self._watch.lost(self)
        self.inner.connection_lost(error)

    def _forget(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None


class ConnectionWatch:
    """Watches over all connections of a server. Its length is how many there are, without those in their handshake."""

    def __init__(self, seconds: float = bounds.HEADERS_SECONDS) -> None:
        self.seconds = seconds
        self._known: dict[asyncio.Protocol, Timed] = {}
        # Nobody is told that a handshake has failed; but its protocol is garbage then.
        self._handshakes: weakref.WeakSet[Timed] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._known)

    def over(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], Timed]:
        """What makes a protocol, made to keep time."""

        def timed() -> Timed:
            connection = Timed(make(), self)
            self._handshakes.add(connection)
            return connection

        return timed

    def made(self, connection: Timed) -> None:
        """The handshake of a connection is done."""
        self._handshakes.discard(connection)
        self._known[connection.inner] = connection

    def lost(self, connection: Timed) -> None:
        """A connection is no more."""
        self._known.pop(connection.inner, None)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """While a request is worked on, its connection may be silent."""
        connection = self._known.get(request.protocol)
        if connection is None:
            return await handler(request)
        connection.asked(is_asked=True)
        try:
            return await handler(request)
        finally:
            connection.asked(is_asked=False)

    async def dismiss(self) -> int:
        """End the connections, the idle ones by `SEND_AGAIN`, the others by their answers; return how many are left.

        Nobody sends again the first review of a connection, which may be lost when the answer is there before it. So
        who has not asked yet is waited for, and dismissed at the end. Takes `DISMISS_SECONDS` at most.
        """
        for connection in self._known.values():
            if connection.is_used:
                connection.dismiss()
        if self._handshakes:
            gc.collect()
        ends = time.monotonic() + DISMISS_SECONDS
        while (self._handshakes or self._known) and time.monotonic() < ends:  # noqa: ASYNC110 - a handshake fails untold
            await asyncio.sleep(LOOK_SECONDS)
        for connection in self._known.values():
            connection.dismiss()
        return len(self._known)
