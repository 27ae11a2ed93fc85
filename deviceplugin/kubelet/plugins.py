"""Runs one plugin per advertised resource. Plugins start and stop independently.

A resource that is no longer advertised keeps its plugin for a while, with an empty list: the kubelet would otherwise
report the last devices as capacity for another five minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deviceplugin.kubelet import plugin_registration, plugin_service
from deviceplugin.state import advertisement
from deviceplugin.state.offer import Observable

logger = logging.getLogger(__name__)

EMPTY_SECONDS: Final = 10.0


class Plugins:
    """Keeps a registration for each resource of `advertised`.

    answers: returns the allocator of a resource. registered: receives the resources whose plugins the kubelet knows.
    hung_up: receives the reason if the kubelet keeps closing the stream of a resource, else an empty string.
    """

    def __init__(
        self,
        advertised: Observable[advertisement.Advertisement],
        *,
        answers: Callable[[str], plugin_service.ContainerAllocator],
        directory: Path,
        registered: Observable[frozenset[str]] | None = None,
        hung_up: Observable[str] | None = None,
        empty_seconds: float = EMPTY_SECONDS,
    ) -> None:
        self._advertised = advertised
        self._answers = answers
        self._directory = directory
        self._registered = registered or Observable(frozenset())
        self._hung_up = hung_up or Observable("")
        self._empty_seconds = empty_seconds
        self._registrations: dict[str, plugin_registration.Registration] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._endings: dict[str, asyncio.TimerHandle] = {}
        self._failed = asyncio.get_running_loop().create_future()

    @property
    def problem(self) -> str:
        """A sentence that says why the kubelet does not list an advertised resource; empty if it lists all."""
        wanted = self._advertised.value
        return "; ".join(
            registration.problem
            for name, registration in self._registrations.items()
            if registration.problem and name in wanted
        )

    async def run(self) -> None:
        """Serve the advertised resources until cancelled."""
        following = asyncio.create_task(self._follow())
        try:
            await asyncio.wait({following, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            for done in (following, self._failed):
                if done.done():
                    await done
        finally:
            following.cancel()
            for handle in self._endings.values():
                handle.cancel()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        async for wanted in self._advertised.follow():
            for name in wanted:
                self._start(name)
            for name in self._tasks.keys() - wanted.keys() - self._endings.keys():
                loop = asyncio.get_running_loop()
                self._endings[name] = loop.call_later(
                    plugin_service.REMOVAL_SECONDS + self._empty_seconds, self._end, name
                )

    def _start(self, name: str) -> None:
        ending = self._endings.pop(name, None)
        if ending is not None:
            ending.cancel()
        if name in self._tasks:
            return
        registration = plugin_registration.Registration(
            plugin_service.ServedResource(name, self._answers(name)),
            advertised=self._advertised,
            directory=self._directory,
            changed=self._publish,
        )
        self._registrations[name] = registration
        self._tasks[name] = asyncio.create_task(registration.run(), name=name)
        self._tasks[name].add_done_callback(self._ended)

    def _publish(self) -> None:
        self._registered.publish(
            frozenset(name for name, registration in self._registrations.items() if not registration.problem)
        )
        self._hung_up.publish(
            "; ".join(registration.hung_up for registration in self._registrations.values() if registration.hung_up)
        )

    def _end(self, name: str) -> None:
        del self._endings[name]
        logger.info("Stopped serving a resource", extra={"resource": name})
        self._tasks.pop(name).cancel()
        del self._registrations[name]
        self._publish()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._failed.done():
            error = task.exception() or RuntimeError(f"the plugin of {task.get_name()} ended unexpectedly")
            with contextlib.suppress(asyncio.InvalidStateError):
                self._failed.set_exception(error)
