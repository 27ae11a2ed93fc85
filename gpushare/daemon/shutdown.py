"""Runs a daemon from its first to its last moment.

The exit code is 0 if the daemon was told to stop (SIGTERM, SIGINT) and has drained. It is 1, with a logged error, if
anything ends that should go on: a dead background task must not leave a process that looks alive and does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

logger = logging.getLogger(__name__)

# Kubernetes gives a pod 30 s between SIGTERM and SIGKILL by default.
GRACE_SECONDS: Final = 25.0
CANCEL_SECONDS: Final = 3.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Daemon:
    """The handle that `main` gets: background tasks, and the signal to stop.

    stopping: set when the process was told to stop, or must stop because something failed.
    """

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.failed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = False

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work`, which should never end, next to `main`; if it ends in any way, the process stops.

        It is cancelled once `main` has returned, so that it still serves while `main` drains.
        """
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def stop(self, why: str) -> None:
        """Start the shutdown."""
        if not self.stopping.is_set():
            logger.info("Shutting down", extra={"reason": why})
            self.stopping.set()

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """Start the shutdown, with exit code 1."""
        self.failed = True
        logger.error(what, exc_info=error)
        self.stop(what)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._ending and task.cancelled():
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(f"The background task {task.get_name()} failed", error)
        elif not self.stopping.is_set():
            self.fail(f"The background task {task.get_name()} ended unexpectedly")

    async def end_tasks(self) -> None:
        """Cancel the background tasks, and wait briefly for them to clean up."""
        self._ending = True
        await _cancel(*self._tasks)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, left = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
    for task in left:
        logger.error("A cancelled task does not stop", extra={"task": task.get_name()})


def run(main: Callable[[Daemon], Awaitable[None]], *, grace_seconds: float = GRACE_SECONDS) -> int:
    """Run `main` in a new event loop and return the process's exit code: 0 after a clean end, else 1.

    main: sets up, starts its background tasks, waits for `daemon.stopping`, drains and returns. Once stopping is set,
    it has `grace_seconds` for that. It is cancelled after them, or at a second signal.
    """
    return asyncio.run(_supervised(main, grace_seconds))


async def _supervised(main: Callable[[Daemon], Awaitable[None]], grace_seconds: float) -> int:
    daemon = Daemon()
    hurry = asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if daemon.stopping.is_set():
            hurry.set()
        daemon.stop(number.name)

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signalled, number)

    async def call() -> None:
        await main(daemon)

    task = asyncio.create_task(call(), name="main")
    try:
        await _first(task, daemon.stopping.wait())
        if not task.done():
            await _first(task, hurry.wait(), timeout_seconds=grace_seconds)
        if not task.done():
            daemon.fail("Cancelled the remaining work: it did not finish in time")
            await _cancel(task)
        elif task.cancelled():
            daemon.fail("The daemon cancelled itself")
        elif (error := task.exception()) is not None:
            daemon.fail("The daemon failed", error)
    finally:
        await daemon.end_tasks()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return 1 if daemon.failed else 0


async def _first(
    task: asyncio.Task[None], other: Coroutine[Any, Any, Any], timeout_seconds: float | None = None
) -> None:
    """Wait until one of the two is done, or time is up; `task` goes on, `other` is cancelled."""
    waiting = asyncio.create_task(other)
    await asyncio.wait({task, waiting}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
