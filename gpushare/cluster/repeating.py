"""A loop that works run_on_wakeup it is woken, and retries with growing pauses after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gpushare.cluster import api_errors, backoff

FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 30.0


async def run_on_wakeup(
    woken: asyncio.Event, step: Callable[[], Awaitable[None]], *, trouble: str, logger: logging.Logger
) -> None:
    """Run a `step` each time `woken` is set, until cancelled.

    trouble: a log sentence for a step that raised ClusterError; the step is retried.
    """
    failures = 0
    while True:
        await woken.wait()
        woken.clear()
        try:
            await step()
            failures = 0
        except api_errors.ClusterError as error:
            failures += 1
            pause_seconds = backoff.pause_seconds(
                failures, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS
            )
            logger.warning(trouble, extra={"err": str(error), "pause_seconds": round(pause_seconds, 1)})
            await asyncio.sleep(pause_seconds)
            woken.set()
