"""Items: parses a list of the API server object by object while it arrives, so that it is never in memory as a whole.

A list of 100,000 pods is half a gigabyte of JSON and several of Python objects; we keep a tenth of that. The API server
sends what is in its cache in one piece, whatever `limit` says, so pages alone do not help. Pure: bytes in, objects out.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

PORTION_BYTES: Final = 64 << 10  # parsed at a time: a millisecond or two
MAX_BYTES: Final = 64 << 20  # of one item; etcd rejects objects of more than a few MiB

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()

Step = Callable[[], dict[str, Any] | None]


class _Incomplete(Exception):  # noqa: N818 (it is no error)
    """The value's last bytes have not been fed yet."""


class Items:
    """The parser of one answer: `feed` it bytes, and it yields each item as soon as that is complete.

    fields: the other keys of the list, `kind` and `metadata`. If they come after the items, as with custom resources,
    they are complete only once all bytes are fed.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogatepass")  # as json.loads has it
        self._fed: list[bytes] = []
        self._fed_bytes = 0
        self._enough_bytes = PORTION_BYTES
        self._text = ""
        self._at = 0  # how much of `_text` has been parsed
        self._next: Step | None = self._beginning

    @property
    def has_begun(self) -> bool:
        """Whether anything has been fed."""
        return self._next != self._beginning or self._fed_bytes > 0 or bool(self._text)

    def feed(self, content: bytes, *, is_last: bool = False) -> Iterator[dict[str, Any]]:
        """Feed more of the answer. Raises ValueError if it is not a list, or ends before the list does."""
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
            raise ValueError("it is not a list, or not all of one")
        if left > MAX_BYTES:
            raise ValueError(f"one item is longer than {MAX_BYTES} bytes")
        # An incomplete value is parsed again once twice as much has arrived: that costs no more than receiving it.
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
        else:  # null: there are none
            if self._value() is not None:
                raise ValueError("its items are no list")
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
            raise _Incomplete from error  # or invalid, which shows once no more bytes follow
        if self._text[end : end + 1] in (".", "e", "E"):
            raise _Incomplete  # a number whose last digits may still arrive
        self._at = end
        return value

    def _mark(self, expected: str) -> str:
        mark = self._text[self._begin()]
        if mark not in expected:
            raise ValueError(f"it is not a list: there is {mark!r} in place of {' or '.join(expected)}")
        self._at += 1
        return mark

    def _begins_with(self, mark: str) -> bool:
        return self._text[self._begin()] == mark

    def _begin(self) -> int:
        """Skip insignificant bytes up to the next value."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        if self._at == len(self._text):
            raise _Incomplete
        return self._at
