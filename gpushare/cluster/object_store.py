"""A copy of one collection in memory, and its changes. Pure: events in, changes out.

Changes come one by one and in order, so that subscribers always know exactly what the store holds: an object that was
deleted and recreated between two lists is a DELETED and an ADDED, never a MODIFIED.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any, NamedTuple

Transform = Callable[[dict[str, Any]], dict[str, Any] | None]


class Key(NamedTuple):
    """Namespace and name of an object; the namespace of cluster-scoped ones is ""."""

    namespace: str
    name: str


class ChangeType(enum.StrEnum):
    """The words of the watch protocol."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Delta:
    """One object was added, changed or deleted; `old` is None when ADDED, `new` when DELETED."""

    type: ChangeType
    key: Key
    old: dict[str, Any] | None
    new: dict[str, Any] | None


def drop_managed_fields(item: dict[str, Any]) -> dict[str, Any]:
    """Drop managedFields, often half of an object; the API server preserves them on a write."""
    item.get("metadata", {}).pop("managedFields", None)
    return item


def key_of(item: Mapping[str, Any]) -> Key:
    """Return the key of a whole object."""
    metadata = item["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


def identity_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the least metadata that a `transform` may keep if the object's name is not needed."""
    metadata = item["metadata"]
    return {"uid": metadata.get("uid"), "resourceVersion": metadata.get("resourceVersion")}


class Store(Mapping[Key, dict[str, Any]]):
    """The objects by key, read-only: all readers share them.

    transform: applied to each object as it arrives; returns what to keep of it, or None to skip the object.
    """

    def __init__(self, transform: Transform = drop_managed_fields) -> None:
        self._objects: dict[Key, dict[str, Any]] = {}
        self._transform = transform

    def __getitem__(self, key: Key) -> dict[str, Any]:
        return self._objects[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def values(self) -> ValuesView[dict[str, Any]]:
        """All objects, without a copy: callers read very many, often."""
        return self._objects.values()

    def keep(self, item: dict[str, Any]) -> tuple[Key, dict[str, Any] | None]:
        """Return what `replace` should hold of an object: the held value, if it is equal. The store does not change."""
        key = key_of(item)
        old = self._objects.get(key)
        return key, self._transform(item) if old is None or identity_of(old) != identity_of(item) else old

    def replace(self, kept: Iterable[tuple[Key, dict[str, Any] | None]]) -> Iterator[Delta | None]:
        """Replace the whole collection by the results of `keep`.

        Yields the difference as changes, each once the store holds it, deletions first. Yields None for each step that
        changed nothing, so that a caller with very many objects can pause.
        """
        fresh: dict[Key, dict[str, Any]] = {}
        for key, item in kept:
            if item is not None:
                fresh[key] = item
            yield None
        for key in list(self._objects):
            if key in fresh:
                yield None
            else:
                yield from self._remove(key)
        for key, item in fresh.items():
            yield None
            yield from self._put(key, item)

    def apply(self, event: Mapping[str, Any]) -> Iterator[Delta]:
        """Apply one ADDED, MODIFIED or DELETED event of a watch; yield changes, each once the store holds it.

        Events of unknown types change nothing.
        """
        item = event["object"]
        if event["type"] == ChangeType.DELETED:
            yield from self._remove(key_of(item))
        elif event["type"] in (ChangeType.ADDED, ChangeType.MODIFIED):
            key, new = self.keep(item)
            yield from self._put(key, new) if new is not None else self._remove(key)

    def _put(self, key: Key, new: dict[str, Any]) -> Iterator[Delta]:
        old = self._objects.get(key)
        if old is new:
            return
        if old is not None and old["metadata"].get("uid") != new["metadata"].get("uid"):
            yield from self._remove(key)
            old = None
        self._objects[key] = new
        yield Delta(ChangeType.MODIFIED if old is not None else ChangeType.ADDED, key, old, new)

    def _remove(self, key: Key) -> Iterator[Delta]:
        old = self._objects.pop(key, None)
        if old is not None:
            yield Delta(ChangeType.DELETED, key, old, None)
