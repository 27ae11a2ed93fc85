"""Mutations of JSON that yield valid JSON, which a fuzzer of bytes hardly ever produces."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

# Values that were wrong somewhere, or might be.
MAX_PLACES = 2000  # in a document; larger documents are not duplicated
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 100, 101, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**400),
    *(0.5, -0.0, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "x", "0", "-1", "0.5", "1e309", "nan", "٠.٥", "9" * 5000, "1Gi", "1e3", "100%", "0x10", "1:0"),
    *("\0", "\x1b[2J", "\u202e", "\ud800", "\n", "💥", "a" * 300, "=1", "2026-13-45", "a/b", "../x", "%s", "{}"),
    *([], {}, [None], [[]], [{}], {"": None}, {"x": 1}, {"a": {"a": {"a": {}}}}),
)
Bytes = Callable[[bytes, int], bytes]  # a mutation of bytes with a maximum length


def changed(data: bytes, most: int, seed: int, *, bytewise: Bytes, headed: bool) -> bytes:
    """Return a mutation of the data, of at most so many bytes.

    headed: the JSON follows a line with other data.
    """
    draw = random.Random(seed)
    head, line, body = data.partition(b"\n") if headed else (b"", b"", data)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return bytewise(data, most)
    if draw.random() < 0.1:
        return bytewise(data, most)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        document = _step(document, draw, bytewise)
    try:
        result = head + line + json.dumps(document).encode()
    except (ValueError, RecursionError):  # the document contains itself
        return bytewise(data, most)
    return result if len(result) <= most else bytewise(data, most)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return every list and mapping with each of its keys."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from _places(child)


def _step(document: Any, draw: random.Random, bytewise: Bytes) -> Any:
    places = list(_places(document))
    if not places:
        return draw.choice((draw.choice(ODD), document))
    within, key = draw.choice(places)
    what = draw.randrange(8)
    if what <= 2:
        within[key] = copy.deepcopy(draw.choice(ODD))
    elif what == 3:
        del within[key]
    elif what == 4:
        other, at = draw.choice(places)
        value = copy.deepcopy(other[at])
        if draw.random() < 0.5:
            within[key] = value
        elif isinstance(within, list):
            within.insert(key, value)
        else:
            within[str(at)] = value
    elif what == 5 and isinstance(within, dict):
        names = [name for holder, name in places if isinstance(holder, dict)]
        within[draw.choice(names)] = within.pop(key)
    elif what == 6 and len(places) < MAX_PLACES:
        within[key] = draw.choice(([within[key]], {"x": within[key]}, [within[key]] * 20))
    else:
        within[key] = _scalar(within[key], draw, bytewise)
    return document


def _scalar(value: Any, draw: random.Random, bytewise: Bytes) -> Any:
    if isinstance(value, str):
        return bytewise(value.encode("utf-8", "surrogatepass"), len(value) + 16).decode("utf-8", "replace")
    if isinstance(value, int) and abs(value) < 2**128:
        return draw.choice((value + 1, value - 1, -value, value * 2, str(value), value + 0.5, value << 32))
    return copy.deepcopy(draw.choice(ODD))
