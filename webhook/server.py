"""HTTPS server: reviews in, reviews out, without any policy.

The API server does not retry a lost review; it rejects the pod. It also keeps using its open connections to a replica
that the Service no longer lists. So no connection is closed without an answer to a review that may be in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Final

from aiohttp import web

from gpushare import contract
from gpushare.syntaxes.translation import SYNTAXES
from webhook import bounds, connections, review

logger = logging.getLogger(__name__)

Admit = Callable[[review.AdmissionRequest], Awaitable[review.ReviewResponse]]

SHUTDOWN_SECONDS: Final = 12.0  # longer than the webhook's timeout, after which no client waits
IDLE_SECONDS: Final = 600.0  # the API server closes connections that are unused for 90 s, so we never do
BACKLOG: Final = 1024  # connections of several API servers that start together
QUIET_SECONDS: Final = 2.0  # without a review: the remaining connections are unused
MAX_DRAIN_SECONDS: Final = 8.0  # for an API server that keeps sending reviews
POLL_SECONDS: Final = 0.1


class GracefulShutdown:
    """Shuts a replica down without losing a review: connections are closed by answers, after a quiet period."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = False
        self._last_review = clock()

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Record the time of each review; once draining, close its connection after the answer."""
        self._last_review = self._clock()
        answer = await handler(request)
        if self._begun:
            answer.force_close()
        return answer

    async def drain(self, open_connections: Collection[object]) -> None:
        """Wait until no connection is left or the others are unused for a while, for a limited time."""
        self._begun = True
        began = self._last_review = self._clock()
        while open_connections and self._clock() - self._last_review < QUIET_SECONDS:
            if self._clock() - began > MAX_DRAIN_SECONDS:
                logger.warning("Stopped listening although reviews keep arriving: is the preStop pause missing?")
                return
            await asyncio.sleep(POLL_SECONDS)


def application(
    admit: Admit, shutdown: GracefulShutdown, watch: connections.ConnectionWatch, slots: connections.ConnectionSlots
) -> web.Application:
    in_flight, lines = bounds.InFlightLimiter(), bounds.LogRation()

    @web.middleware
    async def yield_slot(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            error.force_close()
            raise
        if slots.is_full:
            answer.force_close()
        return answer

    async def mutate(request: web.Request) -> web.Response:
        try:
            async with in_flight.body(request) as body:
                asked = review.read(body, syntax=request.match_info.get("syntax", ""))
                del body  # the parsed review is as large
                return web.json_response(review.respond(asked, await admit(asked)))
        except review.MalformedReviewError as error:
            return refused(request, error, 400)
        except bounds.TooMuchError as error:
            answer = refused(request, error, error.status)
            answer.force_close()  # do not wait for the rest of the body
            return answer

    def refused(request: web.Request, error: Exception, status: int) -> web.Response:
        dropped = lines.allow()
        if dropped is not None:
            extra = {"err": str(error), "peer": request.remote, "dropped": dropped}
            logger.warning("Refused a malformed review", extra=extra)
        return web.json_response({"error": str(error)}, status=status)

    app = web.Application(middlewares=[watch.middleware, shutdown.middleware, yield_slot])
    app.router.add_post(contract.WEBHOOK_PATH, mutate)
    app.router.add_post(f"{contract.WEBHOOK_PATH}/{{syntax:{'|'.join(SYNTAXES)}}}", mutate)
    return app


@contextlib.asynccontextmanager
async def serve(admit: Admit, tls: ssl.SSLContext, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context lasts; yield the port (chosen by the system if `port` is 0).

    At the end, reviews are answered until there is silence. Then the socket is closed, idle connections are closed, and
    in-flight reviews are answered.
    """
    shutdown, watch, slots = GracefulShutdown(), connections.ConnectionWatch(), connections.ConnectionSlots()

    runner = web.AppRunner(
        application(admit, shutdown, watch, slots),
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=IDLE_SECONDS,
        lingering_time=0.0,
        read_bufsize=connections.READ_AHEAD_BYTES,
    )
    await runner.setup()

    def protocol() -> asyncio.BaseProtocol:
        if runner.server is None:
            raise RuntimeError("the runner was not set up")
        return connections.TlsConnection(watch.over(runner.server()), tls, slots)

    try:
        # Not a site of aiohttp, because the connections have our protocol.
        loop = asyncio.get_running_loop()
        with contextlib.closing(await loop.create_server(protocol, host, port, backlog=BACKLOG)) as listener:
            yield int(listener.sockets[0].getsockname()[1])
            await shutdown.drain(watch.known)
        logger.info("Stopped listening", extra={"connections": len(watch.known), "left": await watch.dismiss()})
    finally:
        await runner.cleanup()
