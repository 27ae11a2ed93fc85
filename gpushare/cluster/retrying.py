"""Retries: the pause before the next try, a loop that is woken, and changes of one object without a lock.

The pause is exponential, bounded and random over the whole range ("full jitter"): a failure often hits all replicas or
nodes at the same moment, and they must not all retry at the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gpushare.cluster import api_client, api_errors


def pause_seconds(
    failures: int, *, first_seconds: float, most_seconds: float, draw: Callable[[], float] = random.random
) -> float:
    """Return the pause after `failures` failed tries in a row (1 or more).

    The upper end doubles with each failure from `first_seconds` to `most_seconds`. The pause lies between a tenth of
    the upper end and all of it, so that it is never zero.
    """
    end = min(most_seconds, first_seconds * 2.0 ** min(failures - 1, 62))
    return end * (0.1 + 0.9 * draw())


async def wait(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until the event is set, for at most `seconds`; None: without a limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # `wait_for` of Python 3.11 can swallow a cancellation
            await event.wait()


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
            pause = pause_seconds(failures, first_seconds=FIRST_PAUSE_SECONDS, most_seconds=MAX_PAUSE_SECONDS)
            logger.warning(trouble, extra={"err": str(error), "pause_seconds": round(pause, 1)})
            await asyncio.sleep(pause)
            woken.set()


ATTEMPTS: Final = 16
SWAP_FIRST_PAUSE_SECONDS: Final = 0.005
SWAP_MAX_PAUSE_SECONDS: Final = 0.5

Change = Callable[[dict[str, Any]], dict[str, Any] | None]


async def compare_and_swap(api: api_client.ApiClient, path: str, change: Change) -> dict[str, Any]:
    """Apply `change` to the object at `path`; return the object as stored.

    No lock is held while waiting, and a writer that dies leaves nothing behind.

    change: gets the whole object, which it may alter, and returns the object to write, or None if there is nothing to
        write. It is called once per attempt, each time with the state then, so its earlier decisions do not count. An
        exception that it raises is passed on, and nothing is written.

    Raises Conflict if every attempt met a faster writer; NotFound, Invalid and Unavailable as the client does. After
    Unavailable the change may or may not have been written: call again, with a `change` that recognises its own result.
    """
    attempt = 0
    while True:
        attempt += 1
        current = await api.get(path)
        version, uid = current["metadata"]["resourceVersion"], current["metadata"]["uid"]
        wanted = change(current)
        if wanted is None:
            return current
        # Set again here, because a write without them would overwrite any version.
        wanted = {**wanted, "metadata": {**wanted.get("metadata", {}), "resourceVersion": version, "uid": uid}}
        try:
            return await api.replace(path, wanted)
        except api_errors.Conflict as error:
            if attempt == ATTEMPTS:
                message = f"{error}; gave up after {ATTEMPTS} attempts"
                raise api_errors.Conflict(message, status=error.status, reason=error.reason) from error
        await asyncio.sleep(
            pause_seconds(attempt, first_seconds=SWAP_FIRST_PAUSE_SECONDS, most_seconds=SWAP_MAX_PAUSE_SECONDS)
        )
