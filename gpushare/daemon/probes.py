"""What the kubelet and Prometheus ask: /healthz, /readyz and /metrics, over plain HTTP on a port of their own.

A daemon may have documents of its own there, made again for each request.

Health means that the event loop turns. Readiness is a table of named checks, each of which says what is missing in one
sentence, so that `curl …/readyz` explains why a pod gets no traffic.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import prometheus_client
from aiohttp import web
from prometheus_client import exposition

from gpushare import printable

logger = logging.getLogger(__name__)

# Returns None when ready, and otherwise what is missing, as a sentence.
Check = Callable[[], str | None]


# Returns what is to be sent as JSON, or None while there is nothing to say yet.
Document = Callable[[], object]
NO_DOCUMENTS: Final[Mapping[str, Document]] = {}


def application(
    checks: Mapping[str, Check],
    registry: prometheus_client.CollectorRegistry,
    documents: Mapping[str, Document] = NO_DOCUMENTS,
) -> web.Application:
    """Return the three routes, and one for each of `documents`, by its path.

    `checks` may be added to later; it is read at each request.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = not_ready(checks)
        if not missing:
            return web.Response(text="ok\n")
        lines = (f"{printable.replaced(f'{name}: {sentence}')}\n" for name, sentence in missing.items())
        return web.Response(status=503, text="".join(lines))

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))
        text = encode(registry).decode()
        if not printable.is_document(text):  # the model of a GPU is its agent's to say
            text = "\n".join(map(printable.replaced, text.split("\n")))
        return web.Response(body=text.encode(), headers={"Content-Type": content_type})

    def answering(document: Document) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            content = document()
            if content is None:
                return web.Response(status=503, text="nothing is known yet: ask again in a few seconds\n")
            return web.json_response(text=printable.escaped(json.dumps(content)))

        return answer

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    for path, document in documents.items():
        app.router.add_get(path, answering(document))
    return app


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
    runner = web.AppRunner(application(checks, registry, documents), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
