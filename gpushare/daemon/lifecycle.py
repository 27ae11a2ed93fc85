"""Runs a daemon from its first to its last moment: the event loop, logs, and garbage collection.

The exit code is 0 after SIGTERM or SIGINT, once the daemon has drained. It is 1, with a logged error, if
anything ends that should go on: a dead background task must not leave a process that looks alive and does nothing.

Logs are JSON, one line each, on stderr, with the keys of Kubernetes' own components: `ts`, `v` (the level), `msg`,
`err`, then the call's `extra`. Values are never part of the message, so that lines can be counted and searched by it.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import json
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TextIO

from gpushare import printable

logger = logging.getLogger(__name__)

# Kubernetes gives a pod 30 s between SIGTERM and SIGKILL by default.
GRACE_SECONDS: Final = 25.0
CANCEL_SECONDS: Final = 3.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
GC_THRESHOLDS: Final = (10_000, 5, 200)  # at most 50,000 at once, but all new ones after ten million
FREEZE_SECONDS: Final = 3600.0  # by then the new ones have become old

# The attributes of every LogRecord; all others came as `extra`.
_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class Daemon:
    """The handle that `main` gets: background tasks, and the signal to stop."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()  # set on a signal to stop, or because something failed
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


def configure_logs(level: str, component: str, *, stream: TextIO | None = None) -> None:
    """Send all logs of this process to `stream` (stderr), from `level` (one of LOG_LEVELS, else ValueError) on.

    component: added to each line, to tell apart logs that are collected together.
    """
    if level not in LOG_LEVELS:
        raise ValueError(f"log level {level!r} does not exist; use one of {', '.join(LOG_LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(component))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)


class JsonLines(logging.Formatter):
    """One JSON object per line, all printable. Every record yields a line: other values become text."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"ts": when.replace("+00:00", "Z"), "v": record.levelname.lower()}
        line["msg"] = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            line["err"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        line["component"] = self._component
        line["logger"] = record.name
        extra = {key: value for key, value in record.__dict__.items() if key not in _OWN}
        line.update({key if key not in line or key == "err" else f"{key}_": extra[key] for key in extra})
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        try:
            text = json.dumps(line, ensure_ascii=False, allow_nan=False, default=str)
        except (TypeError, ValueError):  # NaN, a key that is not a string, a cycle
            plain = {str(key): value if isinstance(value, str | int) else str(value) for key, value in line.items()}
            text = json.dumps(plain, ensure_ascii=False)
        return printable.escaped(text)


def freeze_objects() -> None:
    """Collect once, and exempt the remaining objects from collection.

    A copy of a large cluster is millions of objects without cycles; to scan them all takes a second without answers.
    """
    began = time.perf_counter()
    collected = gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # Counting the exempt objects would take as long as scanning them.
    extra = {"collected": collected, "seconds": round(time.perf_counter() - began, 3)}
    logger.info("Excluded all present objects from garbage collection", extra=extra)


async def freeze_objects_when_ready(ready: Awaitable[None]) -> None:
    """Freeze now, again once a daemon's copies are read, and every hour; never ends."""
    freeze_objects()
    await ready
    gc.freeze()
    while True:
        await asyncio.sleep(FREEZE_SECONDS)
        freeze_objects()
