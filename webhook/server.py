"""HTTPS: reviews in, reviews out. Knows HTTP, knows no policy.

The API server never sends a review again that got lost: a pod is refused then. It goes on using the connections it has,
also to a replica that its Service has forgotten. So none is closed without an answer to what may be on its way on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from aiohttp import web

from gpushare import contract
from webhook import bounds, connection_slots, connections, review

logger = logging.getLogger(__name__)

Admit = Callable[[review.AdmissionRequest], Awaitable[review.ReviewResponse]]

SHUTDOWN_SECONDS: Final = 12.0  # longer than the webhook's timeout: who still waits then has given up
IDLE_SECONDS: Final = 600.0  # the API server closes a connection that it has not used for 90 s: it closes, never we
BACKLOG: Final = 1024  # connections of several API servers that all begin at once
QUIET_SECONDS: Final = 2.0  # without a review: hardly anybody uses the connections that are left
MAX_DRAIN_SECONDS: Final = 8.0  # at most, for an API server that goes on and on
POLL_SECONDS: Final = 0.1


class GracefulShutdown:
    """How a replica goes without losing a review: each connection ends with an answer, and silence is waited for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = False
        self._last_review = clock()

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Keep count; from `quiet` on an answer says that its connection ends with it."""
        self._last_review = self._clock()
        answer = await handler(request)
        if self._begun:
            answer.force_close()
        return answer

    async def drain(self, open_connections: Callable[[], int]) -> None:
        """Return when no connection is left, or those that are were not used for a while; in bounded time."""
        self._begun = True
        began = self._last_review = self._clock()
        while open_connections() and self._clock() - self._last_review < QUIET_SECONDS:
            if self._clock() - began > MAX_DRAIN_SECONDS:
                logger.warning("Stopped to listen although reviews go on coming: is there no preStop pause?")
                return
            await asyncio.sleep(POLL_SECONDS)


def application(
    admit: Admit,
    shutdown: GracefulShutdown | None = None,
    timing: connections.ConnectionWatch | None = None,
    slots: connection_slots.ConnectionSlots | None = None,
) -> web.Application:
    """The application with its one route, `/mutate`."""
    in_flight, lines = bounds.InFlightLimiter(), bounds.LogRation()

    @web.middleware
    async def yield_slot(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """While other connections wait, an answer ends its own."""
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            error.force_close()
            raise
        if slots is not None and slots.is_full:
            answer.force_close()
        return answer

    async def mutate(request: web.Request) -> web.Response:
        try:
            async with in_flight.body(request) as body:
                asked = review.read(body)
                del body  # what it was read into is as large
                return web.json_response(review.respond(asked, await admit(asked)))
        except review.MalformedReviewError as error:
            return refused(request, error, 400)
        except bounds.TooMuchError as error:
            answer = refused(request, error, error.status)
            answer.force_close()  # what else it would send is not waited for
            return answer

    def refused(request: web.Request, error: Exception, status: int) -> web.Response:
        unsaid = lines.allow()
        if unsaid is not None:
            extra = {"err": str(error), "peer": request.remote, "unsaid": unsaid}
            logger.warning("Refused a malformed review", extra=extra)
        return web.json_response({"error": str(error)}, status=status)

    app = web.Application(
        middlewares=[*(kept.middleware for kept in (timing, shutdown) if kept is not None), yield_slot]
    )
    app.router.add_post(contract.WEBHOOK_PATH, mutate)
    return app


class _Site(web.BaseSite):
    """As aiohttp's own for TCP, with bounds in time and number."""

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, protocol: Callable[[web.Server], asyncio.BaseProtocol]
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._place = host, port
        self._protocol = protocol

    @property
    def name(self) -> str:
        """The address that is listened on."""
        return f"https://{self._place[0]}:{self._place[1]}"

    async def start(self) -> None:
        """Begin to listen."""
        await super().start()
        if self._runner.server is None:
            raise RuntimeError("the runner was not set up")
        self._server = await asyncio.get_running_loop().create_server(
            functools.partial(self._protocol, self._runner.server), *self._place, backlog=BACKLOG
        )


@contextlib.asynccontextmanager
async def serve(admit: Admit, tls: ssl.SSLContext, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context lasts; yield the port (chosen by the system when `port` is 0).

    At the end whoever still sends reviews is answered until there is silence; then no connection is taken any more,
    those that are idle are ended, and what is in hand is answered.
    """
    shutdown, timing, slots = GracefulShutdown(), connections.ConnectionWatch(), connection_slots.ConnectionSlots()

    def protocol(aiohttp_server: web.Server) -> asyncio.BaseProtocol:
        return connection_slots.TlsConnection(timing.over(aiohttp_server)(), tls, slots)

    runner = web.AppRunner(
        application(admit, shutdown, timing, slots),
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        keepalive_timeout=IDLE_SECONDS,
        lingering_time=0.0,
        read_bufsize=connection_slots.READ_AHEAD_BYTES,
    )
    await runner.setup()
    try:
        site = _Site(runner, host, port, protocol)
        await site.start()
        yield int(runner.addresses[0][1])
        await shutdown.drain(lambda: len(timing))
        await site.stop()
        logger.info("Stopped to listen", extra={"connections": len(timing), "left": await timing.dismiss()})
    finally:
        await runner.cleanup()
