"""Kubernetes objects from the JSON that kubectl or a file delivers, and the text of an Event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpushare import object_parsers
from gpushare.object_parsers import Json


class Reader:
    """Iterates over `(kind, object)` of every JSON document in `chunks`.

    After the iteration, `version` is the resourceVersion of the last document. Raises `object_parsers.NotJson`.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._reader = object_parsers.ObjectReader()

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Yield the objects in order."""
        for chunk in self._chunks:
            yield from self._reader.feed(chunk)
        yield from self._reader.feed(b"", is_last=True)

    @property
    def version(self) -> str:
        """The resourceVersion to watch from."""
        metadata = self._reader.fields.get("metadata")
        return str(metadata.get("resourceVersion", "")) if isinstance(metadata, dict) else ""


def message_of(event: Mapping[str, Any]) -> str:
    """Return the message of an Event of either API, without the prefix that the API server adds to a series."""
    text = str(event.get("message") or event.get("note") or "")
    return text.removeprefix("(combined from similar events): ")
