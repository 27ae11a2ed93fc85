"""Observable values, such as the GPUs of the node.

Followers see the newest value, not every value: a slow reader of ListAndWatch must not build up a backlog of outdated
lists.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from gpushare.gpunode import Gpu

Value = TypeVar("Value")


class Observable(Generic[Value]):
    """A value that can be followed: by iterating over `follow`, or by an event that each change sets."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._next = asyncio.Event()
        self._woken: list[asyncio.Event] = []

    def publish(self, value: Value) -> None:
        """Replace the value and notify followers; no-op if it is equal."""
        if value == self.value:
            return
        self.value = value
        self._next.set()
        self._next = asyncio.Event()
        for event in self._woken:
            event.set()

    def wake(self, event: asyncio.Event) -> None:
        """Set the event now, and on every change."""
        self._woken.append(event)
        event.set()

    async def follow(self) -> AsyncIterator[Value]:
        """Yield the current value, and the new one after each change, without end."""
        while True:
            changed, value = self._next, self.value
            yield value
            if self.value is value:
                await changed.wait()


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """A GPU that does not answer.

    index: its number; None if the driver does not count it. bus_id: set if only the kernel lists the GPU. Without
    either, the driver itself does not answer.
    """

    index: int | None
    reason: str
    bus_id: str = ""

    def __str__(self) -> str:
        name = "the driver" if self.index is None and not self.bus_id else f"GPU {self.bus_id or self.index}"
        return f"{name} does not answer: {self.reason}"


class Offer(Observable[tuple[Gpu, ...]]):
    """The node's GPUs, observable."""

    def __init__(self, gpus: tuple[Gpu, ...] = ()) -> None:
        super().__init__(gpus)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.value
