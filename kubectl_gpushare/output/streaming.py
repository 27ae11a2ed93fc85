"""Streaming: a document as JSON or YAML, in parts, as `dumps` of the whole would print it.

Unprintable characters are escaped: parsers get them back, and a terminal does not act on them.
A list may be an iterator: only one of the 40,000 items of a large cluster is in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import printable

_INDENT = "    "  # kubectl's


def json(document: Mapping[str, Any]) -> Iterator[str]:
    """The document as kubectl prints JSON, with a newline at its end. Lists directly in it may be iterators."""
    from json import JSONEncoder

    encoder = JSONEncoder(indent=len(_INDENT), ensure_ascii=False)

    def encode(part: Any) -> str:
        return printable.escaped(encoder.encode(part))

    before = "{"
    for key, value in document.items():
        yield f"{before}\n{_INDENT}{encode(key)}: "
        before = ","
        if not isinstance(value, Iterator):
            yield _indented(encode(value), 1)
            continue
        comma = ""
        for item in value:
            yield f"{comma or '['}\n{_INDENT * 2}{_indented(encode(item), 2)}"
            comma = ","
        yield f"\n{_INDENT}]" if comma else "[]"
    yield "\n}\n"


def _indented(text: str, depth: int) -> str:
    return text.replace("\n", "\n" + _INDENT * depth)  # no string of JSON has a newline in it


def yaml(document: Mapping[str, Any]) -> Iterator[str]:
    """The document as YAML, in its own order. Lists directly in it may be iterators."""
    import yaml as library

    dumper = getattr(library, "CSafeDumper", library.SafeDumper)

    def write(part: Any, by: Any, *, as_is: bool) -> str:
        text: str = library.dump(part, None, by, sort_keys=False, allow_unicode=as_is, width=4096)
        return text

    def dump(part: Any) -> str:
        with contextlib.suppress(UnicodeEncodeError):  # of halves of surrogates libyaml can write nothing
            if printable.is_document(text := write(part, dumper, as_is=True)):
                return text
        return write(part, library.SafeDumper, as_is=False)

    for key, value in document.items():
        if not isinstance(value, Iterator):
            yield dump({key: value})
            continue
        empty = True
        for item in value:
            yield f"{key}:\n{dump([item])}" if empty else dump([item])
            empty = False
        if empty:
            yield dump({key: []})
