"""Connections: limits how many are served, and for how long each; closes idle ones without losing a review.

A connection that has begun a request must complete it in time. An idle one may stay longer than an API server keeps it.
Closing an idle connection could lose a review that is in flight, which the API server would not retry. So an idle
connection is closed with an answer that applies to such a review; then the client closes it, or we do soon after.
"""

from __future__ import annotations

import asyncio
import collections
import ssl
import time
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from webhook import bounds

# kube-apiserver retries a review, as long as it has time, that was answered with 429 or 5xx and `Retry-After`
# (client-go, rest/with_retry.go). If no review is in flight, it closes the connection and logs an unsolicited response
# (net/http, transport.go). If we closed the socket here, the rest of a review in flight would be answered by a reset,
# which the API server may see first.
SEND_AGAIN: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 0\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)
IDLE_SECONDS: Final = 120.0  # the API server closes connections that are unused for 90 s
FRESH_SECONDS: Final = 5.0  # an API server sends its first review at once, and never retries that one
DISMISS_SECONDS: Final = 2.0  # for clients to read it, and to complete requests
POLL_SECONDS: Final = 0.02


class Timed(asyncio.Protocol):
    """Forwards to aiohttp's protocol, and closes a connection whose request is not complete in time."""

    def __init__(self, inner: asyncio.Protocol, watch: ConnectionWatch) -> None:
        self.inner = inner
        self._is_dismissed = False
        self.is_used = False
        self.watch = watch
        self._transport: asyncio.Transport | None = None
        self._ends: asyncio.TimerHandle | None = None
        self._idle_ends: asyncio.TimerHandle | None = None
        self._is_asked = False
        self._idle_since = 0.0

    @property
    def idle_since(self) -> float | None:
        """Time of its last answer, or of its start, by the loop's clock; None if a review may be in flight."""
        if self._transport is None or self.is_ending or self._is_asked or self._ends is not None:
            return None
        is_fresh = not self.is_used and asyncio.get_running_loop().time() < self._idle_since + FRESH_SECONDS
        return None if is_fresh else self._idle_since

    @property
    def is_ending(self) -> bool:
        return self._is_dismissed or (self._transport is not None and self._transport.is_closing())

    def asked(self, *, is_asked: bool) -> None:
        """Record that the headers of a request are complete, or that it was answered."""
        self._is_asked = is_asked
        self.is_used = True
        self._forget()
        if not is_asked:
            self._begin_idling()

    def dismiss(self) -> None:
        """Ask the client to close an idle connection and retry any review in flight."""
        is_busy = self._is_asked or self._ends is not None
        if self._transport is None or is_busy or self._is_dismissed or self._transport.is_closing():
            return
        self._is_dismissed = True
        self._transport.write(SEND_AGAIN)

    def end(self) -> None:
        """Close an idle connection, after `SEND_AGAIN`."""
        if self._transport is not None and self.idle_since is not None:
            self.dismiss()
            asyncio.get_running_loop().call_later(DISMISS_SECONDS, self._transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a connection needs a transport that can be written to, not {type(transport).__name__}")
        self._transport = transport
        self.inner.connection_made(transport)
        self.watch.handshakes.discard(self)
        self.watch.known[self.inner] = self
        self._begin_idling()

    def data_received(self, data: bytes) -> None:
        if self._is_dismissed:
            return  # it was answered already
        if not self._is_asked and self._ends is None and self._transport is not None:
            self._ends = asyncio.get_running_loop().call_later(self.watch.seconds, self._transport.close)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        self.watch.known.pop(self.inner, None)
        self.inner.connection_lost(error)

    def _begin_idling(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_since = loop.time()
        self._idle_ends = loop.call_later(self.watch.idle_seconds, self.end)

    def _forget(self) -> None:
        for timer in (self._ends, self._idle_ends):
            if timer is not None:
                timer.cancel()
        self._ends = self._idle_ends = None


class ConnectionWatch:
    """All connections of a server, known by their inner protocol once the handshake is done."""

    def __init__(self, seconds: float = bounds.HEADERS_SECONDS, idle_seconds: float = IDLE_SECONDS) -> None:
        self.seconds = seconds
        self.idle_seconds = idle_seconds
        self.known: dict[asyncio.Protocol, Timed] = {}
        self.handshakes: set[Timed] = set()

    def over(self, inner: asyncio.Protocol) -> Timed:
        connection = Timed(inner, self)
        self.handshakes.add(connection)
        return connection

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Suspend a connection's timeouts while its request is processed."""
        connection = self.known.get(request.protocol)
        if connection is None:
            return await handler(request)
        connection.asked(is_asked=True)
        try:
            return await handler(request)
        finally:
            connection.asked(is_asked=False)

    async def dismiss(self) -> int:
        """Close all connections, idle ones by `SEND_AGAIN`, others by their answers; return how many are left.

        An API server does not retry the first review of a connection, which is lost if the answer arrives before it. So
        connections without a review are dismissed last. Takes at most `DISMISS_SECONDS`.
        """
        for connection in self.known.values():
            if connection.is_used:
                connection.dismiss()
        ends = time.monotonic() + DISMISS_SECONDS
        while (self.handshakes or self.known) and time.monotonic() < ends:  # noqa: ASYNC110 - for either
            await asyncio.sleep(POLL_SECONDS)
        for connection in self.known.values():
            connection.dismiss()
        return len(self.known)


# Python's default buffer takes 256 KiB per connection, filled with zeros before the first byte arrives.
TLS_BUFFER_BYTES: Final = 1 << 15
READ_AHEAD_BYTES: Final = 1 << 15
NEARLY_FULL: Final = 0.75
RETRY_SECONDS: Final = 0.25
MAX_ENDED_AT_ONCE: Final = 32


class ConnectionSlots:
    """The connections that are served, and those that wait for a slot, in order of arrival.

    Each connection takes memory before it sends a byte. Connections beyond the limits wait, without TLS buffers. To
    free slots, idle connections are closed with `SEND_AGAIN`, and answers close theirs while others wait. The next to
    be served is one whose address has the fewest slots, so that no address starves another.
    """

    def __init__(self) -> None:
        self._served: dict[TlsConnection, str] = {}
        self._waiting: dict[TlsConnection, str] = {}
        self._retry: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        return bool(self._waiting)

    def arrive(self, connection: TlsConnection) -> None:
        address = connection.address
        if self._has_room(address):
            self._serve(connection)
            # Closing a connection depends on its client, so begin before all slots are used.
            if self._has_most(address, NEARLY_FULL) or len(self._served) >= NEARLY_FULL * bounds.MAX_CONNECTIONS:
                self._end_an_idle_one(address)
            return
        of_address = sum(other == address for other in self._waiting.values())
        if len(self._waiting) >= bounds.MAX_WAITING or of_address >= bounds.MAX_WAITING // 2:
            connection.refuse()
            return
        self._waiting[connection] = address
        if self._retry is None:
            self._make_room()

    def leave(self, connection: TlsConnection) -> None:
        self._waiting.pop(connection, None)
        if self._served.pop(connection, None) is None:
            return
        served = collections.Counter(self._served.values())
        able = [waiting for waiting, address in self._waiting.items() if self._has_room(address)]
        if able:
            following = min(able, key=lambda waiting: served[waiting.address])
            del self._waiting[following]
            self._serve(following)

    def _make_room(self) -> None:
        """Close idle connections in favor of waiting ones, and repeat while any wait."""
        ending = sum(connection.timed.is_ending for connection in self._served)
        count = max(0, min(MAX_ENDED_AT_ONCE, len(self._waiting) - ending))
        for address in list(self._waiting.values())[:count]:
            self._end_an_idle_one(address)
        again = asyncio.get_running_loop().call_later
        self._retry = again(RETRY_SECONDS, self._make_room) if self._waiting else None

    def _serve(self, connection: TlsConnection) -> None:
        self._served[connection] = connection.address
        connection.begin()

    def _has_room(self, address: str) -> bool:
        return len(self._served) < bounds.MAX_CONNECTIONS and not self._has_most(address)

    def _has_most(self, address: str, part: float = 1.0) -> bool:
        return sum(other == address for other in self._served.values()) >= part * bounds.MAX_OF_ADDRESS

    def _end_an_idle_one(self, address: str) -> None:
        """Close the longest idle connection, of the same address if that one is near its limit."""
        same = self._has_most(address, NEARLY_FULL)
        idle = [
            (served.timed.idle_since, place, served)
            for place, (served, other) in enumerate(self._served.items())
            if served.timed.idle_since is not None and (other == address or not same)
        ]
        if idle:
            min(idle)[2].timed.end()


class TlsConnection(sslproto.SSLProtocol):
    """A connection whose TLS handshake begins once it has a slot; like asyncio's, with smaller buffers."""

    max_size = TLS_BUFFER_BYTES

    def __init__(self, timed: Timed, context: ssl.SSLContext, slots: ConnectionSlots) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            timed,
            context,
            waiter=None,  # type: ignore[arg-type] # the stubs know only what asyncio gives
            server_side=True,
            ssl_handshake_timeout=bounds.HANDSHAKE_SECONDS,  # type: ignore[arg-type] # the stubs know whole seconds only
            ssl_shutdown_timeout=DISMISS_SECONDS,
        )
        self._set_read_buffer_limits(high=READ_AHEAD_BYTES)  # type: ignore[attr-defined] # unknown to the stubs
        self.timed = timed
        self.address = ""
        self._slots = slots
        self._socket: asyncio.Transport | None = None
        self._gives_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a connection needs a transport that can be written to, not {type(transport).__name__}")
        self._socket = transport
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        transport.pause_reading()
        self._gives_up = asyncio.get_running_loop().call_later(bounds.HANDSHAKE_SECONDS, self.refuse)
        self._slots.arrive(self)

    def begin(self) -> None:
        if self._gives_up is not None:
            self._gives_up.cancel()
        if self._socket is not None:
            super().connection_made(self._socket)
            self._socket.resume_reading()

    def refuse(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def connection_lost(self, error: BaseException | None) -> None:
        """End the connection, whether or not its handshake has begun."""
        if self._gives_up is not None:
            self._gives_up.cancel()
        self.timed.watch.handshakes.discard(self.timed)
        super().connection_lost(error)
        self._slots.leave(self)
