"""The driver for the event loop: its calls block, so they run in a thread, one at a time."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from deviceplugin.hardware import nvml

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Driver:
    """An initialised NVML, shared by everything in this process."""

    def __init__(self, opened: nvml.Nvml) -> None:
        self.nvml = opened
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None

    @property
    def silent_seconds(self) -> float:
        """How many seconds the running call has taken so far; 0 if none is running."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def ask(
        self, question: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Call `question`, which uses `nvml`, in the order of requests."""
        await self._lock.acquire()
        # Cancelling a call does not stop its thread. The next call waits until the thread has returned.
        call = asyncio.create_task(self._call(functools.partial(question, *arguments, **named)))
        call.add_done_callback(_retrieve_error)
        return await asyncio.shield(call)

    async def _call(self, question: Callable[[], Answer]) -> Answer:
        self._asked_at = time.monotonic()
        try:
            return await asyncio.to_thread(question)
        finally:
            self._asked_at = None
            self._lock.release()


def _retrieve_error(call: asyncio.Task[Any]) -> None:
    """Mark the error of a call as retrieved, because its caller may have been cancelled."""
    if not call.cancelled():
        call.exception()
