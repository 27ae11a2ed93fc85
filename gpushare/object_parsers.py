"""Reads the objects in JSON and YAML that others wrote, of bounded depth and size. Pure: text in, objects out.

A list of 100,000 pods is half a gigabyte of JSON, and the API server sends its cached objects in one answer, whatever
`limit` says: JSON is read one object at a time, while it is still arriving. The YAML library composes values by a
recursive C function, which a text of 100,000 levels would crash, and aliases stand for exponentially many values.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from gpushare import errors

Json = dict[str, Any]
Step = Callable[[], tuple[str, Json] | None]

PORTION_BYTES: Final = 64 << 10  # decoded at once, which takes a millisecond or two
MAX_BYTES: Final = 64 << 20  # of one object; etcd refuses objects of more than a few MiB
MAX_DEPTH: Final = 100  # levels of YAML; an object of the API server has about 20
MAX_REPEATED: Final = 100_000  # values that aliases may stand for, besides those in the text

_SHOWN: Final = 60  # characters of unexpected text in an error
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()
_TOO_DEEP: Final = f"it is nested too deeply: at most {MAX_DEPTH} levels are allowed"
_ALIAS: Final = re.compile(r"(?:^|[\s\[{,:-])\*[^\s*]")


class NotJson(ValueError):  # noqa: N818 - reads as what it is
    """The input is not JSON, not an object, or not the list that was expected."""


class _Incomplete(Exception):  # noqa: N818 - not an error
    """More input is needed."""


class ObjectReader:
    """Parses JSON documents: `feed` yields `(kind, object)` as soon as an object is complete.

    The elements of a list's `items` are yielded one by one. An element without a kind gets the list's without "List";
    if the list names its kind after its items, they are yielded at its end. `fields` has the other fields of the
    document that was read last, such as the `metadata` of a list.
    list_only: accept exactly one document, a list; never wait for its kind, and decode small pieces together.
    """

    def __init__(self, *, list_only: bool = False) -> None:
        self.fields: Json = {}
        self._list_only = list_only
        self._is_list = False
        self._without_kind: list[Json] = []
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogatepass")  # accepts what json.loads accepts
        self._fed: list[bytes] = []
        self._fed_bytes = 0
        self._least_bytes = PORTION_BYTES if list_only else 1
        self._needed_bytes = self._least_bytes
        self._text = ""
        self._at = 0  # everything in `_text` before this has been read
        self._next: Step = self._document

    @property
    def has_begun(self) -> bool:
        """Whether any input has arrived."""
        return self._next != self._document or self._fed_bytes > 0 or bool(self._text)

    def feed(self, content: bytes, *, is_last: bool = False) -> Iterator[tuple[str, Json]]:
        """Add input, and yield the objects that it completes. Raises NotJson for invalid or truncated input."""
        self._fed.append(content)
        self._fed_bytes += len(content)
        if self._fed_bytes < self._needed_bytes and not is_last:
            return
        try:
            self._text = self._text[self._at :] + self._utf8.decode(b"".join(self._fed), final=is_last)
        except UnicodeDecodeError as error:
            raise NotJson("it is not UTF-8") from error
        self._at = 0
        self._fed = []
        self._fed_bytes = 0
        yield from self._complete(is_last=is_last)
        rest = len(self._text) - self._at
        if rest > MAX_BYTES:
            raise NotJson(f"one object is longer than {MAX_BYTES} bytes")
        # Retrying an incomplete object only when the input has doubled keeps the total cost linear.
        self._needed_bytes = max(self._least_bytes, rest)

    def _complete(self, *, is_last: bool) -> Iterator[tuple[str, Json]]:
        while True:
            began = self._at
            try:
                item = self._next()
            except _Incomplete as error:
                self._at = began
                at_the_end = self._next == self._document and not self._text[began:].strip()
                if is_last and (not at_the_end or (self._list_only and not self._is_list)):
                    raise NotJson(f"it ends too early{error}") from error
                return
            if item is not None:
                yield item
            while self._next == self._document and self._without_kind:
                yield self._list_kind(), self._without_kind.pop(0)

    def _document(self) -> None:
        self._mark("{")
        if self._list_only and self._is_list:
            raise NotJson("there is more text after the list")
        self.fields = {}
        self._is_list = False
        self._next = self._field

    def _field(self) -> tuple[str, Json] | None:
        if not self.fields and not self._is_list and self._peek() == "}":
            return self._after_field()
        name = self._value()
        if not isinstance(name, str):
            raise NotJson(f"expected the name of a field and found {str(name)[:_SHOWN]}")
        self._mark(":")
        if name == "items" and self._peek() == "[":
            self._mark("[")
            self._is_list = True
            if is_empty := self._peek() == "]":
                self._mark("]")
            self._next = self._after_field if is_empty else self._item
            return None
        value = self._value()
        self._peek()  # a number may continue in the next portion
        if name == "items" and self._list_only and value is not None:
            raise NotJson("its items are not a list")
        if name == "items" and value is None:
            self._is_list = True
        else:
            self.fields[name] = value
        self._next = self._after_field
        return None

    def _item(self) -> tuple[str, Json] | None:
        item = self._value()
        if not isinstance(item, dict):
            raise NotJson("one of its items is not an object")
        self._next = self._item if self._mark(",]") == "," else self._after_field
        kind = str(item.get("kind") or self._list_kind())
        if kind or self._list_only:
            return kind, item
        self._without_kind.append(item)
        return None

    def _after_field(self) -> tuple[str, Json] | None:
        if self._mark(",}") == ",":
            self._next = self._field
            return None
        if self._list_only and not self._is_list:
            raise NotJson("it has no items")
        self._next = self._document
        return None if self._is_list else (str(self.fields.get("kind", "")), self.fields)

    def _list_kind(self) -> str:
        kind = str(self.fields.get("kind", ""))
        return kind.removesuffix("List") if kind != "List" else ""

    def _value(self) -> Any:
        self._peek()
        try:
            value, end = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            raise _Incomplete(f": {error.msg} in the middle of an object") from error  # or wrong: known at the end
        except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
            raise NotJson(str(error)) from error
        if self._text[end : end + 1] in (".", "e", "E"):
            raise _Incomplete  # the rest of a number is still to arrive
        self._at = end
        return value

    def _mark(self, expected: str) -> str:
        mark = self._peek()
        if mark not in expected:
            found = self._text[self._at : self._at + _SHOWN].splitlines()[0]
            raise NotJson(f"expected {' or '.join(expected)} and found {found}")
        self._at += 1
        return mark

    def _peek(self) -> str:
        """Skip white space and return the next character."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        if self._at == len(self._text):
            raise _Incomplete
        return self._text[self._at]


def read_yaml(text: str) -> Iterator[Any]:
    """Yield the documents. Raises CodecError, with the line if known."""
    import yaml  # not earlier: the plugin starts faster without it

    try:
        has_aliases = _ALIAS.search(text) is not None
        for document in yaml.load_all(text.removeprefix("\ufeff"), _loader()):
            if has_aliases:
                _count(document)
            yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise errors.CodecError(f"{line}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise errors.CodecError(" ".join(str(error).split())) from error
    # Raised for text that looks like a type but is no value of it, such as a 13th month.
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        if isinstance(error, errors.CodecError):
            raise
        raise errors.CodecError(f"a value does not have the type that its notation implies: {error}") from error


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # whichever there is
        """The library's loader, with a limit on the depth."""

        depth = 0

        def descend_resolver(self, current_node: Any, current_index: Any) -> None:
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise yaml.YAMLError(_TOO_DEEP)
            super().descend_resolver(current_node, current_index)

        def ascend_resolver(self) -> None:
            super().ascend_resolver()
            self.depth -= 1

    return Loader


def _count(document: Any) -> None:
    """Raise CodecError for a value that by aliases stands for too many values, or for infinitely many."""
    known: dict[int, tuple[int, int]] = {}  # of lists and mappings, by identity: the number of values, and the depth
    inside: set[int] = set()
    written = 0

    def extent(value: Any) -> tuple[int, int]:
        nonlocal written
        if not isinstance(value, (list, dict)):
            written += 1
            return 1, 0
        if id(value) in inside:
            raise errors.CodecError("an alias refers to a value that contains it")
        if id(value) not in known:
            written += 1
            inside.add(id(value))
            within = [extent(child) for child in (value.values() if isinstance(value, dict) else value)]
            inside.discard(id(value))
            known[id(value)] = 1 + sum(size for size, _ in within), 1 + max((levels for _, levels in within), default=0)
        return known[id(value)]

    values, levels = extent(document)
    if levels > MAX_DEPTH:
        raise errors.CodecError(_TOO_DEEP)
    if values > written + MAX_REPEATED:
        raise errors.CodecError(f"its aliases expand to more than {MAX_REPEATED} values")
