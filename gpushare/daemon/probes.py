"""The endpoints for the kubelet and Prometheus: /healthz, /readyz and /metrics, over plain HTTP on a separate port.

A daemon may serve other documents there. While many clients are connected, rendering pages takes at most a fifth of the
event loop's time, and each connection gets one request, so that clients cannot starve the daemon or the kubelet's
probes (`probe_connections`). Otherwise every request renders its page.

Healthy means that the event loop runs. Readiness is a table of named checks, each of which returns what is missing as a
sentence, so that `curl …/readyz` explains why a pod gets no traffic.
"""

from __future__ import annotations

import asyncio
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
from gpushare.daemon import probe_connections

logger = logging.getLogger(__name__)

# Returns what is missing, as a sentence, or None when ready.
Check = Callable[[], str | None]


# Returns a document to send as JSON, or None while there is none.
Document = Callable[[], object]
NO_DOCUMENTS: Final[Mapping[str, Document]] = {}
KEPT_TIMES: Final = 4.0  # while many are connected, a page is cached for this many times as long as rendering took
MANY: Final = 8  # more connections than Prometheus, kubelet and people have open at a time
BACKLOG: Final = 128


def application(
    checks: Mapping[str, Check],
    registry: prometheus_client.CollectorRegistry,
    documents: Mapping[str, Document] = NO_DOCUMENTS,
    *,
    is_crowded: Callable[[], bool] = lambda: False,
) -> web.Application:
    """Return the three routes, and one for each of `documents`, by its path.

    `checks` may be added to later; it is read at each request. is_crowded: whether many clients are connected.
    """

    async def healthz(_: web.Request) -> web.Response:  # of a request that arrives in pieces
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = not_ready(checks)
        if not missing:
            return web.Response(text="ok\n")
        lines = (f"{printable.replaced(f'{name}: {sentence}')}\n" for name, sentence in missing.items())
        # As from the API server: kubectl get --raw does not print the body of a 503.
        return web.Response(status=500, text="".join(lines))

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))

        def make() -> bytes:
            text = encode(registry).decode()
            if not printable.is_document(text):  # the agent may report any model
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
                return web.Response(status=503, text="nothing is known yet: ask again in a few seconds\n")
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
    """Pages by name. While many clients are connected, each page is cached for a moment, unless it is empty."""

    def __init__(self, is_crowded: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_crowded = is_crowded
        self._clock = clock
        self._made: dict[str, tuple[float, bytes]] = {}

    def get(self, name: str, make: Callable[[], bytes | None]) -> bytes | None:
        """Return the page of this name, rendered now if the cached one is too old."""
        known, began = self._made.get(name), self._clock()
        if known is not None and began < known[0] and self._is_crowded():
            return known[1]
        page = make()
        if page is not None:
            ended = self._clock()
            self._made[name] = ended + KEPT_TIMES * (ended - began), page
        return page


def not_ready(checks: Mapping[str, Check]) -> dict[str, str]:
    """Return what is missing, by the name of the check; a check that fails to answer is not ready either."""
    missing: dict[str, str] = {}
    for name, check in checks.items():
        try:
            sentence = check()
        except Exception as error:
            logger.exception("A readiness check failed", extra={"check": name})
            sentence = f"the check itself failed: {error}"
        if sentence is not None:
            missing[name] = sentence
    return missing


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
    app = application(checks, registry, documents, is_crowded=lambda: len(connections) > MANY)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        if runner.server is None:
            raise RuntimeError("the runner was not set up")
        connections = probe_connections.ProbeConnections(runner.server)
        server = await asyncio.get_running_loop().create_server(connections, host, port, backlog=BACKLOG)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
    finally:
        await runner.cleanup()
