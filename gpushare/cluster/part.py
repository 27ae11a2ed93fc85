"""A part of what an informer follows, as a copy of its own: one list and one watch for two who need other things of it.

What stands in the informer's store under one key of an object is an object of the part, where it stands there at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from gpushare.cluster import informer, object_store


class Copy(Protocol):
    """A live copy of a collection, or of a part of it; see `informer.Informer`."""

    @property
    def objects(self) -> Mapping[object_store.Key, dict[str, Any]]:
        """The objects by (namespace, name); read only."""

    @property
    def synced(self) -> asyncio.Event:
        """Set once the first list is in `objects`."""

    def subscribe(self, handler: informer.Handler) -> None:
        """Call `handler` for every object there is (as ADDED), and from now on for every change, in order."""


class Part:
    """Of the objects of `whole` what they have under `key`. To be made before `whole` is run."""

    def __init__(self, whole: informer.Informer, key: str) -> None:
        self._key = key
        self._objects: dict[object_store.Key, dict[str, Any]] = {}
        self._handlers: list[informer.Handler] = []
        self.synced = whole.synced
        whole.subscribe(self._changed)

    @property
    def objects(self) -> Mapping[object_store.Key, dict[str, Any]]:
        """The objects by (namespace, name); read only."""
        return self._objects

    def subscribe(self, handler: informer.Handler) -> None:
        """Call `handler` for every object there is (as ADDED), and from now on for every change, in order."""
        for key, item in list(self._objects.items()):
            handler(object_store.Delta(object_store.ChangeType.ADDED, key, None, item))
        self._handlers.append(handler)

    def _changed(self, change: object_store.Delta) -> None:
        old = self._objects.get(change.key)
        new = change.new.get(self._key) if change.new is not None else None
        if new is not None:
            self._objects[change.key] = new
            kind = object_store.ChangeType.ADDED if old is None else object_store.ChangeType.MODIFIED
        elif old is not None:
            del self._objects[change.key]
            kind = object_store.ChangeType.DELETED
        else:
            return
        for handler in self._handlers:
            handler(object_store.Delta(kind, change.key, old, new))
