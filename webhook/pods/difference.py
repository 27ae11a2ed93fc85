"""Difference: two JSON values → the JSON Patch (RFC 6902) from one to the other. Pure.

It supports what pods need: lists are compared by index, and extra items are added at the end, or in front if the rest
is unchanged. Each admission pays for it, and a search for the shortest patch takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def patch(before: Any, after: Any) -> list[Operation]:
    """Return the operations in order; none if both are equal as JSON. An object that is in both is not compared."""
    return list(_compare(before, after, ""))


def _compare(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _compare_objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _compare_lists(before, after, path)
    elif before != after or isinstance(before, bool) is not isinstance(after, bool):
        yield {"op": "replace", "path": path, "value": after}


def _compare_objects(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[Operation]:
    for key, value in before.items():
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{escaped(key)}"}
        elif value is not after[key]:
            yield from _compare(value, after[key], f"{path}/{escaped(key)}")
    for key, value in after.items():
        if key not in before:
            yield {"op": "add", "path": f"{path}/{escaped(key)}", "value": value}


def _compare_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Operation]:
    more = len(after) - len(before)
    if more > 0 and after[more:] == before:
        for place in range(more):
            yield {"op": "add", "path": f"{path}/{place}", "value": after[place]}
        return
    common = min(len(before), len(after))
    for place in range(len(before) - 1, common - 1, -1):  # from the end, so that indexes stay valid
        yield {"op": "remove", "path": f"{path}/{place}"}
    for place in range(common):
        if before[place] is not after[place]:
            yield from _compare(before[place], after[place], f"{path}/{place}")
    for value in after[common:]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def escaped(key: str) -> str:
    """Escape a key for use in a path (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
