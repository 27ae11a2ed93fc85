"""The endpoints for the kubelet and Prometheus: /healthz, /readyz and /metrics, over plain HTTP on a separate port.

While many clients are connected, making pages takes at most a fifth of the event loop's time. Connections are bounded
in time and in number, and health is answered before anything else is done for one. So no number of clients starves the
daemon or a kubelet's probes. Health means that the event loop runs. Readiness is a table of named checks, each of which
states in one sentence what is missing, so that `curl …/readyz` explains why a pod gets no traffic.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import prometheus_client
from aiohttp import web
from prometheus_client import exposition

from gpushare import printable

logger = logging.getLogger(__name__)

Check = Callable[[], str | None]  # returns None if ready, else what is missing, as a sentence
Document = Callable[[], object]  # returns the JSON to send, or None while there is nothing to report
NO_DOCUMENTS: Final[Mapping[str, Document]] = {}
CACHE_FACTOR: Final = 4.0  # with many clients, a page is cached this many times as long as it took to make
CROWDED_CONNECTIONS: Final = 8  # more connections than Prometheus, the kubelet and people open at a time
BACKLOG: Final = 128
MAX_CONNECTIONS: Final = 256
MAX_CONNECTIONS_PER_ADDRESS: Final = 64
MAX_SECONDS: Final = 30.0  # for one request and its answer
HEALTH: Final = b"GET /healthz "
HEALTHY: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"
)


def _application(
    checks: Mapping[str, Check],
    registry: prometheus_client.CollectorRegistry,
    documents: Mapping[str, Document],
    is_crowded: Callable[[], bool],
) -> web.Application:
    """Return the three routes, and one for each path in `documents`; callers may add to `checks` later."""

    async def healthz(_: web.Request) -> web.Response:  # for a request that arrives in pieces
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = ""
        for name, check in checks.items():
            try:
                sentence = check()
            except Exception as error:
                logger.exception("A readiness check failed", extra={"check": name})
                sentence = f"the check itself failed: {error}"
            if sentence is not None:
                missing += f"{printable.replaced(f'{name}: {sentence}')}\n"
        # As the API server does: `kubectl get --raw` does not print the body of a 503.
        return web.Response(status=500, text=missing) if missing else web.Response(text="ok\n")

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))

        def make() -> bytes:
            text = encode(registry).decode()
            if not printable.is_document(text):  # agents take a GPU's model from the driver
                text = "\n".join(map(printable.replaced, text.split("\n")))
            return text.encode()

        return web.Response(body=pages.get(content_type, make), headers={"Content-Type": content_type})

    def answering(path: str, document: Document) -> Callable[[web.Request], Awaitable[web.Response]]:
        def make() -> bytes | None:
            content = document()
            return printable.escaped(json.dumps(content)).encode() if content is not None else None

        async def answer(_: web.Request) -> web.Response:
            page = pages.get(path, make)
            if page is None:
                return web.Response(status=503, text="no data yet: try again in a few seconds\n")
            return web.json_response(body=page)

        return answer

    async def one_request(_: web.Request, response: web.StreamResponse) -> None:
        response.force_close()

    pages = Pages(is_crowded)
    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.on_response_prepare.append(one_request)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    for path, document in documents.items():
        app.router.add_get(path, answering(path, document))
    return app


class Pages:
    """Pages by name. While many clients are connected, each non-empty page is cached for a moment."""

    def __init__(self, is_crowded: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_crowded = is_crowded
        self._clock = clock
        self._made: dict[str, tuple[float, bytes]] = {}

    def get(self, name: str, make: Callable[[], bytes | None]) -> bytes | None:
        """Return the page of this name, made again if it is too old."""
        known, began = self._made.get(name), self._clock()
        if known is not None and began < known[0] and self._is_crowded():
            return known[1]
        page = make()
        if page is not None:
            ended = self._clock()
            self._made[name] = ended + CACHE_FACTOR * (ended - began), page
        return page


@contextlib.asynccontextmanager
async def serve(
    checks: Mapping[str, Check],
    registry: prometheus_client.CollectorRegistry,
    *,
    host: str,
    port: int,
    documents: Mapping[str, Document] = NO_DOCUMENTS,
) -> AsyncIterator[int]:
    """Serve while the context lasts; yield the port (chosen by the system when `port` is 0)."""
    app = _application(checks, registry, documents, lambda: len(connections) > CROWDED_CONNECTIONS)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        if runner.server is None:
            raise RuntimeError("the runner was not set up")
        connections = ProbeConnections(runner.server)
        server = await asyncio.get_running_loop().create_server(connections, host, port, backlog=BACKLOG)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
    finally:
        await runner.cleanup()


class ProbeConnections:
    """The open connections, oldest first. make: the protocol for all requests except health."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self.make = make
        self._open: dict[_Connection, str] = {}
        self._of_address: collections.Counter[str] = collections.Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __call__(self) -> _Connection:
        """Return a new connection's protocol."""
        return _Connection(self)

    def made(self, connection: _Connection, address: str) -> None:
        """Register a connection, and close the oldest if there are too many."""
        if self._of_address[address] >= MAX_CONNECTIONS_PER_ADDRESS:
            next(other for other, its in self._open.items() if its == address).end()
        elif len(self._open) >= MAX_CONNECTIONS:
            next(iter(self._open)).end()
        self._open[connection] = address
        self._of_address[address] += 1

    def lost(self, connection: _Connection) -> None:
        """Unregister a connection; no-op if unknown."""
        address = self._open.pop(connection, None)
        if address is not None:
            self._of_address -= collections.Counter({address: 1})


class _Connection(asyncio.Protocol):
    """One connection. It costs nothing more until it asks for something other than health."""

    def __init__(self, connections: ProbeConnections) -> None:
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a connection over {type(transport).__name__} is not writable")
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(MAX_SECONDS, self.end)
        self._connections.made(self, str((transport.get_extra_info("peername") or ("",))[0]))

    def end(self) -> None:
        self._connections.lost(self)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._inner is None and data.startswith(HEALTH):
            self._transport.write(HEALTHY)
            self._transport.close()
            return
        if self._inner is None:
            self._inner = self._connections.make()
            self._inner.connection_made(self._transport)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.lost(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._inner is not None:
            self._inner.connection_lost(error)
