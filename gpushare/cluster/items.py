"""Parses a list of the API server as it arrives, so that all of it is never in memory.

A list of 100,000 pods is half a gigabyte of JSON and several of Python objects, of which we keep a tenth. The API
server sends its cache in one piece, whatever `limit` says, so pages alone do not help. Pure: bytes in, objects out.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

PORTION_BYTES: Final = 64 << 10  # parsed at once: a millisecond or two
MAX_BYTES: Final = 64 << 20  # of one item; etcd rejects objects of more than a few MiB

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()

Step = Callable[[], dict[str, Any] | None]


class _Incomplete(Exception):  # noqa: N818 (it is no error)
    """The value goes on in bytes that have not been fed yet."""


class Items:
    """One response: `feed` it, and it yields each item as soon as that is complete.

    fields: the list's other fields: `kind`, `metadata`. Fields after the items, as with custom resources, are present
    once everything has been fed.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogatepass")  # as json.loads does
        self._fed: list[bytes] = []
        self._fed_bytes = 0
        self._enough_bytes = PORTION_BYTES
        self._text = ""
        self._at = 0  # `_text` is parsed up to here
        self._next: Step | None = self._beginning

    @property
    def has_begun(self) -> bool:
        """Whether any bytes have been fed."""
        return self._next != self._beginning or self._fed_bytes > 0 or bool(self._text)

    def feed(self, content: bytes, *, is_last: bool = False) -> Iterator[dict[str, Any]]:
        """Parse more of the response. Raises ValueError if it is not a list, or ends early."""
        self._fed.append(content)
        self._fed_bytes += len(content)
        if self._fed_bytes < self._enough_bytes and not is_last:
            return
        self._text = self._text[self._at :] + self._utf8.decode(b"".join(self._fed), final=is_last)
        self._at = 0
        self._fed, self._fed_bytes = [], 0
        yield from self._complete()
        left = len(self._text) - self._at
        if is_last and self._next is not None:
            raise ValueError("it is not a list, or it is truncated")
        if left > MAX_BYTES:
            raise ValueError(f"one item is longer than {MAX_BYTES} bytes")
        # An incomplete value is parsed again when twice as much is there: that costs no more than receiving it.
        self._enough_bytes = max(PORTION_BYTES, left)

    def _complete(self) -> Iterator[dict[str, Any]]:
        while self._next is not None:
            began = self._at
            try:
                item = self._next()
            except _Incomplete:
                self._at = began
                return
            if item is not None:
                yield item

    def _beginning(self) -> None:
        self._mark("{")
        self._next = self._field

    def _field(self) -> None:
        name = self._value()
        self._mark(":")
        if name != "items":
            value = self._value()
            self._after_field()
            self.fields[str(name)] = value
        elif self._begins_with("["):
            self._mark("[")
            self._next = self._after_items if self._begins_with("]") else self._item
        else:  # null: no items
            if self._value() is not None:
                raise ValueError("its items are not a list")
            self._after_field()

    def _item(self) -> dict[str, Any]:
        item = self._value()
        if not isinstance(item, dict):
            raise ValueError("one of its items is not an object")  # noqa: TRY004 (as for all else that is not a list)
        self._next = self._item if self._mark(",]") == "," else self._after_field
        return item

    def _after_items(self) -> None:
        self._mark("]")
        self._next = self._after_field

    def _after_field(self) -> None:
        self._next = self._field if self._mark(",}") == "," else None

    def _value(self) -> Any:
        try:
            value, end = _DECODER.raw_decode(self._text, self._begin())
        except ValueError as error:
            raise _Incomplete from error  # or malformed, which shows when nothing follows
        if self._text[end : end + 1] in (".", "e", "E"):
            raise _Incomplete  # a number whose last digits are still to come
        self._at = end
        return value

    def _mark(self, expected: str) -> str:
        mark = self._text[self._begin()]
        if mark not in expected:
            raise ValueError(f"it is not a list: found {mark!r} instead of {' or '.join(expected)}")
        self._at += 1
        return mark

    def _begins_with(self, mark: str) -> bool:
        return self._text[self._begin()] == mark

    def _begin(self) -> int:
        """Skip whitespace and separators to the next value."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        if self._at == len(self._text):
            raise _Incomplete
        return self._at
