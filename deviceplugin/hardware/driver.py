"""The driver for a program that must not wait: its calls block, so they run in a thread, one at a time."""

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
    """An initialised NVML, for everyone in this process."""

    def __init__(self, opened: nvml.Nvml) -> None:
        self.nvml = opened
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None

    @property
    def silent_seconds(self) -> float:
        """For how long the question that is being asked has had no answer; 0 while none is asked."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    async def ask(
        self, question: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Call `question`, which uses `nvml`, when it is its turn: questions are asked in the order they came."""
        await self._lock.acquire()
        # Who is cancelled leaves the thread in the driver: nobody else is let in before it is back.
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
    """Its error is no news when nobody waits for the answer any more."""
    if not call.cancelled():
        call.exception()
