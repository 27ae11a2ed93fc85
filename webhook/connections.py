"""The server's connections: how long each may take for a request, and how an idle one is ended without losing a review.

A connection that has begun a request has to end it in time. One that is idle may stay for longer than an API server
keeps it. Ending an idle connection earlier could lose a review that is on its way on it, and the API server sends no
review again that got lost. So the last word on an idle connection is an answer, to a review that may be on its way; and
the other side closes it, or it is closed soon after.
"""

from __future__ import annotations

import asyncio
import time
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
IDLE_SECONDS: Final = 120.0  # the API server closes a connection that it has not used for 90 s
FRESH_SECONDS: Final = 5.0  # an API server that connects sends its first review at once, and never sends that one again
DISMISS_SECONDS: Final = 2.0  # for the other sides to read it, and to end what they have begun
POLL_SECONDS: Final = 0.02


class Timed(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, and ends a connection whose request is never whole."""

    def __init__(self, inner: asyncio.Protocol, watch: ConnectionWatch) -> None:
        self.inner = inner
        self._is_dismissed = False
        self.is_used = False
        self._watch = watch
        self._transport: asyncio.Transport | None = None
        self._ends: asyncio.TimerHandle | None = None
        self._idle_ends: asyncio.TimerHandle | None = None
        self._is_asked = False
        self._idle_since = 0.0

    @property
    def idle_since(self) -> float | None:
        """When its last answer was given, or it was made, by the loop's clock; None if a review may be on its way."""
        if self._transport is None or self.is_ending or self._is_asked or self._ends is not None:
            return None
        is_fresh = not self.is_used and asyncio.get_running_loop().time() < self._idle_since + FRESH_SECONDS
        return None if is_fresh else self._idle_since

    @property
    def is_ending(self) -> bool:
        """Whether it has had its last word."""
        return self._is_dismissed or (self._transport is not None and self._transport.is_closing())

    def asked(self, *, is_asked: bool) -> None:
        """A request has come whole, as far as its headers; or it was answered."""
        self._is_asked = is_asked
        self.is_used = True
        self._forget()
        if not is_asked:
            self._begin_idling()

    def dismiss(self) -> None:
        """Have the other side end the connection if it is idle: a review that is on its way on it is sent again."""
        is_busy = self._is_asked or self._ends is not None
        if self._transport is None or is_busy or self._is_dismissed or self._transport.is_closing():
            return
        self._is_dismissed = True
        self._transport.write(SEND_AGAIN)

    def end(self) -> None:
        """End the connection if it is idle, by `SEND_AGAIN` first."""
        if self._transport is not None and self.idle_since is not None:
            self.dismiss()
            asyncio.get_running_loop().call_later(DISMISS_SECONDS, self._transport.abort)

    def gone(self) -> None:
        """Its socket is closed, also before its handshake was done."""
        self._watch.gone(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio.Protocol: its handshake is done."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a connection over {type(transport).__name__}: not one that can be written to")
        self._transport = transport
        self.inner.connection_made(transport)
        self._watch.made(self)
        self._begin_idling()

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

    def _begin_idling(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_since = loop.time()
        self._idle_ends = loop.call_later(self._watch.idle_seconds, self.end)

    def _forget(self) -> None:
        for timer in (self._ends, self._idle_ends):
            if timer is not None:
                timer.cancel()
        self._ends = self._idle_ends = None


class ConnectionWatch:
    """Watches over all connections of a server. Its length is how many there are, without those in their handshake."""

    def __init__(self, seconds: float = bounds.HEADERS_SECONDS, idle_seconds: float = IDLE_SECONDS) -> None:
        self.seconds = seconds
        self.idle_seconds = idle_seconds
        self._known: dict[asyncio.Protocol, Timed] = {}
        self._handshakes: set[Timed] = set()

    def __len__(self) -> int:
        return len(self._known)

    def over(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], Timed]:
        """What makes a protocol, made to keep time. The handshake that is to come is waited for until `gone`."""

        def timed() -> Timed:
            connection = Timed(make(), self)
            self._handshakes.add(connection)
            return connection

        return timed

    def gone(self, connection: Timed) -> None:
        """The socket of a connection is closed."""
        self._handshakes.discard(connection)

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
        ends = time.monotonic() + DISMISS_SECONDS
        while (self._handshakes or self._known) and time.monotonic() < ends:  # noqa: ASYNC110 - for either
            await asyncio.sleep(POLL_SECONDS)
        for connection in self._known.values():
            connection.dismiss()
        return len(self._known)
