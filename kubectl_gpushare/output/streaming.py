"""Streaming: a document as JSON or YAML, in parts, as `dumps` of the whole would print it.

A list may be an iterator: of the 40,000 items of a large cluster only one is ever held, as an object and as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_INDENT = "    "  # kubectl's


def json(document: Mapping[str, Any]) -> Iterator[str]:
    """The document as kubectl prints JSON, with a newline at its end. Lists directly in it may be iterators."""
    from json import JSONEncoder

    encode = JSONEncoder(indent=len(_INDENT), ensure_ascii=False).encode
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

    def dump(part: Any) -> str:
        text: str = library.dump(part, None, dumper, sort_keys=False, allow_unicode=True, width=4096)
        return text

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
