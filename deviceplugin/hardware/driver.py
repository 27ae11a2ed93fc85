"""The driver for a program that must not wait: its calls block, so they run in a thread, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from deviceplugin.hardware import nvml

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Driver:
    """An initialised NVML, for everyone in this process."""

    def __init__(self, opened: nvml.Nvml) -> None:
        self.nvml = opened
        self._turn = asyncio.Lock()

    async def ask(
        self, question: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Call `question`, which uses `nvml`, when it is its turn: questions are asked in the order they came."""
        async with self._turn:
            return await asyncio.to_thread(question, *arguments, **named)
