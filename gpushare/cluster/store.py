"""A copy of one collection in memory, and what changed. Pure: events in, changes out.

Changes come one by one and in order, so that whoever follows them always knows exactly what the store holds: an object
that was deleted and made anew between two lists is a DELETED and an ADDED, never a MODIFIED.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any, NamedTuple

Transform = Callable[[dict[str, Any]], dict[str, Any]]


class Key(NamedTuple):
    """What an object is found by; the namespace of cluster-scoped ones is ""."""

    namespace: str
    name: str


class ChangeType(enum.StrEnum):
    """The words of the watch protocol."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """One object came, changed, or went; `old` is None when ADDED, `new` when DELETED."""

    type: ChangeType
    key: Key
    old: dict[str, Any] | None
    new: dict[str, Any] | None


def drop_managed_fields(item: dict[str, Any]) -> dict[str, Any]:
    """Drop who-owns-which-field, often half of an object; the API server keeps it when such an object is written."""
    item.get("metadata", {}).pop("managedFields", None)
    return item


def key_of(item: Mapping[str, Any]) -> Key:
    """Return the key of a whole object."""
    metadata = item["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


class Store(Mapping[Key, dict[str, Any]]):
    """The objects by key, to be read only: they are shared by all readers.

    transform: applied to each object as it comes in; returns what is to be kept of it.
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
        """All of them: very many are asked for at once, and often."""
        return self._objects.values()

    def replace(self, items: Iterable[dict[str, Any]]) -> Iterator[Change]:
        """Take the whole collection anew; yield the difference as changes, each once the store holds it."""
        fresh = {key_of(item): item for item in items}
        for key in [key for key in self._objects if key not in fresh]:
            yield from self._remove(key)
        for key, item in fresh.items():
            yield from self._put(key, item)

    def apply(self, event: Mapping[str, Any]) -> Iterator[Change]:
        """Take one ADDED, MODIFIED or DELETED event of a watch; yield changes, each once the store holds it.

        An event of a type that we do not know is no change.
        """
        item = event["object"]
        if event["type"] == ChangeType.DELETED:
            yield from self._remove(key_of(item))
        elif event["type"] in (ChangeType.ADDED, ChangeType.MODIFIED):
            yield from self._put(key_of(item), item)

    def _put(self, key: Key, item: dict[str, Any]) -> Iterator[Change]:
        old = self._objects.get(key)
        if old is not None and _uid(old) != _uid(item):
            yield from self._remove(key)
            old = None
        if old is not None and _version(old) == _version(item):
            return
        new = self._objects[key] = self._transform(item)
        yield Change(ChangeType.MODIFIED if old is not None else ChangeType.ADDED, key, old, new)

    def _remove(self, key: Key) -> Iterator[Change]:
        old = self._objects.pop(key, None)
        if old is not None:
            yield Change(ChangeType.DELETED, key, old, None)


def _uid(item: Mapping[str, Any]) -> Any:
    return item["metadata"].get("uid")


def _version(item: Mapping[str, Any]) -> Any:
    return item["metadata"].get("resourceVersion")
