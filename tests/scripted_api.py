"""An API server that a test scripts: the contents of its collections, its watch events, and its availability."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from gpushare.cluster import api_client, api_errors

Json = dict[str, Any]
TURN_SECONDS = 0.005


class ScriptedApi(api_client.ApiClient):
    """An API client that supports list and watch only; any other call is a fault of the test.

    objects: the items of a list, by path. keeps_watches: whether a watch stays open after its events; otherwise it
    ends, so that `Informer.step` returns. is_away: whether calls fail and open watches end. asked: the paths requested
    since it was last cleared.
    """

    def __init__(self, *, keeps_watches: bool = False) -> None:
        self.objects: dict[str, list[Json]] = collections.defaultdict(list)
        self.keeps_watches = keeps_watches
        self.is_away = False
        self.asked: set[str] = set()
        self._version = 1
        self._events: dict[str, list[Json | Exception]] = collections.defaultdict(list)

    def tell(self, path: str, *events: Json | Exception) -> None:
        """Queue an event for the watch of this path; an error ends the watch."""
        self._events[path] += events

    async def list(
        self, path: str, query: api_client.Query | None = None, *, keep: Callable[[Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        del query
        self._answer(path)
        self._version += 1
        return api_client.ObjectList([keep(item) for item in self.objects[path]], str(self._version))

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, query: api_client.Query | None = None, *, timeout_seconds: int | None = None
    ) -> AsyncIterator[AsyncIterator[Json]]:
        del query, timeout_seconds
        self._answer(path)
        yield self._told(path)

    async def _told(self, path: str) -> AsyncIterator[Json]:
        while True:
            while self._events[path]:
                event = self._events[path].pop(0)
                if isinstance(event, Exception):
                    raise event
                yield event
            if self.is_away or not self.keeps_watches:
                return
            await asyncio.sleep(TURN_SECONDS)

    def _answer(self, path: str) -> None:
        self.asked.add(path)
        if self.is_away:
            raise api_errors.Unavailable(f"GET {path}: upstream is away", status=503, retry_after_seconds=3600.0)
