"""An event loop with virtual time: whenever all its tasks wait, it asks what happens next.

So the daemons' own code runs unchanged, while a test decides the order of all external events.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

OWNER: contextvars.ContextVar[str] = contextvars.ContextVar("owner", default="")


class _Selector(selectors.BaseSelector):
    """A selector that never waits: when the loop would sleep, `idle` makes something happen instead."""

    def __init__(self) -> None:
        self.idle: Callable[[float | None], None] | None = None
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return self._keys[number]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if (timeout is None or timeout > 0) and self.idle is not None:
            self.idle(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop. idle(seconds until the next timer, or None) must make something ready, or call `advance`."""

    def __init__(self, idle: Callable[[float | None], None]) -> None:
        self.now = 1000.0
        self.failures: list[str] = []
        self._tasks: dict[str, set[asyncio.Task[Any]]] = collections.defaultdict(set)
        self._waits = _Selector()
        super().__init__(self._waits)
        self._waits.idle = idle
        self.set_exception_handler(self._failed)
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the time, and a little more, so that the timer at its end is due."""
        self.now += seconds + 1e-6

    def start(self, owner: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task, which `end` can cancel together with all that it starts."""
        context = contextvars.copy_context()
        context.run(OWNER.set, owner)
        return self.create_task(work, context=context)

    def end(self, owner: str) -> None:
        """Cancel all tasks of `owner`."""
        for task in list(self._tasks[owner]):
            task.cancel()

    def adopt(self, task: asyncio.Task[Any], owner: str) -> None:
        self._tasks[owner].add(task)
        task.add_done_callback(self._tasks[owner].discard)

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")


def _make_task(
    loop: VirtualLoop, work: Coroutine[Any, Any, Any], context: contextvars.Context | None = None
) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context)
    loop.adopt(task, context.get(OWNER, "") if context is not None else OWNER.get())
    return task
