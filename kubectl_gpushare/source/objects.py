"""Kubernetes objects, one at a time, out of JSON that is still arriving.

A list of 5,000 GPUNodes is some 50 MB. Decoded at once it would take ten times that in memory, and reading could
start only after the last byte; so only one object at a time is a dict, and the caller keeps what it needs.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Json = dict[str, Any]

_SHOWN = 60  # characters of unexpected text in an error
_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode


class NotJson(ValueError):  # noqa: N818 - reads as what it is
    """The input is not JSON."""


class Reader:
    """Iterates over `(kind, object)` of every JSON document in `chunks`.

    An object of a List has its own kind, or the List's without "List". After the iteration, `version` is the
    resourceVersion of the last List. Raises `NotJson` for what is not JSON, or ends too early.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._text = ""
        self._at = 0
        self._bytes = codecs.getincrementaldecoder("utf-8")()
        self._ended = False
        self.version = ""

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """The objects in order."""
        try:
            while self._peek():
                yield from self._document()
        except UnicodeDecodeError as error:
            raise NotJson("it is not UTF-8") from error

    def _more(self) -> bool:
        if self._ended:
            return False
        chunk = next(self._chunks, b"")
        self._ended = not chunk
        self._text = self._text[self._at :] + self._bytes.decode(chunk, self._ended)
        self._at = 0
        return not self._ended

    def _peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _expect(self, characters: str) -> str:
        character = self._peek()
        if not character or character not in characters:
            there = self._text[self._at : self._at + _SHOWN].splitlines()[0] if character else "the end"
            raise NotJson(f"expected one of {characters} and found {there}")
        self._at += 1
        return character

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise NotJson(f"{error.msg} in the middle of an object") from error
                continue
            except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
                raise NotJson(str(error)) from error
            if end == len(self._text) and self._more():
                continue  # a number may go on in the next chunk
            self._at = end
            return value

    def _document(self) -> Iterator[tuple[str, Json]]:
        envelope: Json = {}
        waiting: list[Json] = []
        listed = False
        self._expect("{")
        while self._peek() != "}":
            key = self._value()
            if not isinstance(key, str):
                raise NotJson(f"expected the name of a field and found {str(key)[:_SHOWN]}")
            self._expect(":")
            if key == "items" and self._peek() == "[":
                listed = True
                for item in self._elements():
                    kind = item.get("kind") or _item_kind(envelope)
                    if kind:
                        yield str(kind), item
                    else:
                        waiting.append(item)  # a List may name its kind after its items
            else:
                envelope[key] = self._value()
            if self._peek() != "}":
                self._expect(",")
        self._expect("}")
        if not listed:
            yield str(envelope.get("kind", "")), envelope
            return
        metadata = envelope.get("metadata")
        self.version = str(metadata.get("resourceVersion", "")) if isinstance(metadata, dict) else ""
        for item in waiting:
            yield _item_kind(envelope), item

    def _elements(self) -> Iterator[Json]:
        self._expect("[")
        while self._peek() != "]":
            item = self._value()
            if isinstance(item, dict):
                yield item
            if self._peek() != "]":
                self._expect(",")
        self._expect("]")


def message_of(event: Mapping[str, Any]) -> str:
    """The message of an Event of either API, without what the API server puts before it when it counts several."""
    text = str(event.get("message") or event.get("note") or "")
    return text.removeprefix("(combined from similar events): ")


def _item_kind(envelope: Mapping[str, Any]) -> str:
    kind = str(envelope.get("kind", ""))
    return kind.removesuffix("List") if kind != "List" else ""
