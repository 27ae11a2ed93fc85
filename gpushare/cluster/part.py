"""A second view of an informer's objects: one list and one watch for two readers that need different fields.

The informer's transform puts the part under a key of each object; it may be any value, and absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gpushare.cluster import informer, object_store

Object = TypeVar("Object")


class Part(Generic[Object]):
    """The values under `key` in the objects of `whole`. Create it before `whole` runs."""

    def __init__(self, whole: informer.Informer, key: str) -> None:
        self._key = key
        self._objects: dict[object_store.Key, Object] = {}
        self._handlers: list[Callable[[Object | None, Object | None], None]] = []
        self.synced = whole.synced
        whole.subscribe(self._changed)

    @property
    def objects(self) -> Mapping[object_store.Key, Object]:
        """The objects by (namespace, name); read only."""
        return self._objects

    def subscribe(self, handler: Callable[[Object | None, Object | None], None]) -> None:
        """Call `handler` for every object there is, and from now on for every change, in order.

        It gets the object before (None if it was added) and after (None if it was deleted).
        """
        for item in list(self._objects.values()):
            handler(None, item)
        self._handlers.append(handler)

    def _changed(self, change: object_store.Delta) -> None:
        old = self._objects.pop(change.key, None)
        new: Object | None = change.new.get(self._key) if change.new is not None else None
        if new is not None:
            self._objects[change.key] = new
        elif old is None:
            return
        for handler in self._handlers:
            handler(old, new)
