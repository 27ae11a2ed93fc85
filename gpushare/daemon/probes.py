"""What the kubelet and Prometheus ask: /healthz, /readyz and /metrics, over plain HTTP on a port of their own.

Health means that the event loop turns. Readiness is a table of named checks, each of which says what is missing in one
sentence, so that `curl …/readyz` explains why a pod gets no traffic.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping

import prometheus_client
from aiohttp import web
from prometheus_client import exposition

logger = logging.getLogger(__name__)

# Returns None when ready, and otherwise what is missing, as a sentence.
Check = Callable[[], str | None]


def application(checks: Mapping[str, Check], registry: prometheus_client.CollectorRegistry) -> web.Application:
    """Return the three routes. `checks` may be added to later; it is read at each request."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = not_ready(checks)
        if not missing:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{name}: {sentence}\n" for name, sentence in missing.items()))

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
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
) -> AsyncIterator[int]:
    """Serve while the context lasts; yield the port (chosen by the system when `port` is 0)."""
    runner = web.AppRunner(application(checks, registry), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
