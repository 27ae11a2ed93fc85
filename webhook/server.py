"""HTTPS: reviews in, reviews out. Knows HTTP, knows no policy."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from aiohttp import web

from gpushare import contract
from webhook import review

logger = logging.getLogger(__name__)

Admit = Callable[[review.AdmissionRequest], Awaitable[review.Answer]]

LARGEST_REVIEW_BYTES: Final = 8 << 20  # the API server takes objects up to 3 MiB, and a review may hold two
DRAIN_SECONDS: Final = 12.0  # longer than the webhook's timeout: who still waits then has given up


def application(admit: Admit) -> web.Application:
    """The one route."""

    async def mutate(request: web.Request) -> web.Response:
        try:
            asked = review.read(await request.read())
        except review.MalformedReviewError as error:
            logger.warning("Refused a malformed review", extra={"err": str(error), "peer": request.remote})
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response(review.respond(asked, await admit(asked)))

    app = web.Application(client_max_size=LARGEST_REVIEW_BYTES)
    app.router.add_post(contract.WEBHOOK_PATH, mutate)
    return app


@contextlib.asynccontextmanager
async def serve(admit: Admit, tls: ssl.SSLContext, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context lasts; yield the port (chosen by the system when `port` is 0).

    At the end no connection is taken any more, and those in hand are answered.
    """
    runner = web.AppRunner(application(admit), access_log=None, shutdown_timeout=DRAIN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
