"""Values that others have to follow: the GPUs of the node, and what the kubelet is told of them.

Whoever follows sees the newest value, not every one: a slow reader of ListAndWatch must not collect a backlog of lists
that are no longer true.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from gpushare.gpu import Gpu

Value = TypeVar("Value")


class Observable(Generic[Value]):
    """A value now; `publish` tells all followers of a change."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._next = asyncio.Event()
        self._woken: list[asyncio.Event] = []

    def publish(self, value: Value) -> None:
        """Make it the value; nothing happens if it is what it was."""
        if value == self.value:
            return
        self.value = value
        self._next.set()
        self._next = asyncio.Event()
        for event in self._woken:
            event.set()

    def wake(self, event: asyncio.Event) -> None:
        """Set the event now, and from now on at each change."""
        self._woken.append(event)
        event.set()

    async def follow(self) -> AsyncIterator[Value]:
        """The value now, and again after each change, for ever."""
        while True:
            changed, value = self._next, self.value
            yield value
            if self.value is value:
                await changed.wait()


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """A GPU that does not answer.

    index: None where the driver does not even count it. bus_id: of one that only the kernel lists; without either the
    driver itself does not answer.
    """

    index: int | None
    reason: str
    bus_id: str = ""

    def __str__(self) -> str:
        """What is wrong, as a clause."""
        who = "the driver" if self.index is None and not self.bus_id else f"GPU {self.bus_id or self.index}"
        return f"{who} does not answer: {self.reason}"


class Offer(Observable[tuple[Gpu, ...]]):
    """The node's GPUs as last seen."""

    def __init__(self, gpus: tuple[Gpu, ...] = ()) -> None:
        super().__init__(gpus)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the node as of now."""
        return self.value
