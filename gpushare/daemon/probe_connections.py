"""The connections to a daemon's probes: limited in number, in total and per address, and in time.

Any address can connect, and a kubelet that gets no answer in time restarts the daemon. So health is answered here,
before anything else is set up for a connection, and a new connection beyond the limit closes the oldest.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import Final

MAX_CONNECTIONS: Final = 256
MAX_OF_ADDRESS: Final = 64
MAX_SECONDS: Final = 30.0  # for one request and its answer
HEALTH: Final = b"GET /healthz "
HEALTHY: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"
)


class ProbeConnections:
    """The open connections, oldest first. make: returns the protocol for all requests except health."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._open: dict[ProbeConnection, str] = {}
        self._of_address: collections.Counter[str] = collections.Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __call__(self) -> ProbeConnection:
        """Return the protocol of a new connection, as a protocol factory does."""
        return ProbeConnection(self)

    def made(self, connection: ProbeConnection, address: str) -> None:
        """Count a new connection, and close the oldest if there are too many."""
        if self._of_address[address] >= MAX_OF_ADDRESS:
            next(other for other, its in self._open.items() if its == address).end()
        elif len(self._open) >= MAX_CONNECTIONS:
            next(iter(self._open)).end()
        self._open[connection] = address
        self._of_address[address] += 1

    def lost(self, connection: ProbeConnection) -> None:
        """Stop counting a connection; no-op if that was done."""
        address = self._open.pop(connection, None)
        if address is not None:
            self._of_address -= collections.Counter({address: 1})

    def answering(self) -> asyncio.Protocol:
        """Return a protocol for a request that is not about health."""
        return self._make()


class ProbeConnection(asyncio.Protocol):
    """One connection. Nothing is set up for it before it requests something other than health."""

    def __init__(self, connections: ProbeConnections) -> None:
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.Protocol."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a connection over {type(transport).__name__}: not one that can be written to")
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(MAX_SECONDS, self.end)
        self._connections.made(self, str((transport.get_extra_info("peername") or ("",))[0]))

    def end(self) -> None:
        """Close it, even during a request."""
        self._connections.lost(self)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Answer a request for health; pass other requests on."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._inner is None and data.startswith(HEALTH):
            self._transport.write(HEALTHY)
            self._transport.close()
            return
        if self._inner is None:
            self._inner = self._connections.answering()
            self._inner.connection_made(self._transport)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Implement asyncio.Protocol."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """Implement asyncio.Protocol."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Implement asyncio.Protocol."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        self._connections.lost(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._inner is not None:
            self._inner.connection_lost(error)
