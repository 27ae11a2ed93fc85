"""Connection slots: limits how many connections are served at a time, in total and per address.

Any pod in the cluster can connect, and each connection takes memory before it sends a byte. Connections beyond the
limits wait, without TLS buffers, for the slot of a connection that ends. To free slots, idle connections are closed,
and answers close their connection while others wait. An API server retries a review that is lost that way
(`connections.SEND_AGAIN`). The next waiting connection is one whose address has the fewest slots, so that no address
starves another.
"""

from __future__ import annotations

import asyncio
import collections
import ssl
from asyncio import sslproto
from typing import Final

from webhook import bounds, connections

# Python's default buffer takes 256 KiB per connection, filled with zeros before the first byte arrives.
TLS_BUFFER_BYTES: Final = 1 << 15
READ_AHEAD_BYTES: Final = 1 << 15
NEARLY_FULL: Final = 0.75
RETRY_SECONDS: Final = 0.25
MAX_ENDED_AT_ONCE: Final = 32


class ConnectionSlots:
    """The connections that are served, and those that wait for a slot, in order of arrival."""

    def __init__(self) -> None:
        self._served: dict[TlsConnection, str] = {}
        self._waiting: dict[TlsConnection, str] = {}
        self._retry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._served)

    @property
    def is_full(self) -> bool:
        """Whether connections wait."""
        return bool(self._waiting)

    def arrive(self, connection: TlsConnection) -> None:
        """Serve a new connection, queue it, or refuse it."""
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
        """Remove a connection that has ended, and serve the next."""
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

    def __init__(self, timed: connections.Timed, context: ssl.SSLContext, slots: ConnectionSlots) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            timed,
            context,
            waiter=None,  # type: ignore[arg-type] # the stubs know only what asyncio gives
            server_side=True,
            ssl_handshake_timeout=bounds.HANDSHAKE_SECONDS,  # type: ignore[arg-type] # the stubs know whole seconds only
            ssl_shutdown_timeout=connections.DISMISS_SECONDS,
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
        """Begin the handshake."""
        if self._gives_up is not None:
            self._gives_up.cancel()
        if self._socket is not None:
            super().connection_made(self._socket)
            self._socket.resume_reading()

    def refuse(self) -> None:
        """Close the connection before its handshake."""
        if self._socket is not None:
            self._socket.abort()

    def connection_lost(self, error: BaseException | None) -> None:
        """End the connection, whether or not its handshake has begun."""
        if self._gives_up is not None:
            self._gives_up.cancel()
        self.timed.gone()
        super().connection_lost(error)
        self._slots.leave(self)
