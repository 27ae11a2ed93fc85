"""Typed access to the keys of a mapping in the file.

An unknown key is a warning, or an error if it would change the use of a GPU; a value of the wrong type is an error.
NVIDIA's plugin ignores case in the keys of some objects and not of others: `any_case` says which.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gpushare import errors
from gpushare.config.yaml_tree import Item, below, located, scalar_text

_MAX: Final = 64  # of a key that is compared with known ones


class Fields:
    """The entries of one mapping of the file. null counts as an empty mapping.

    warnings: collects unknown keys; None: unknown keys are errors. guarded: keys whose misspelling is an error, because
    without them GPUs are used for something else.
    """

    def __init__(
        self,
        item: Item,
        known: Sequence[str],
        warnings: list[str] | None,
        *,
        any_case: bool = False,
        guarded: Collection[str] = (),
    ) -> None:
        if item.value is not None and not isinstance(item.value, Mapping):
            raise item.error(f"is not a mapping: write its keys below it, such as {known[0]}: …")
        self._at = item
        self._items: dict[str, Item] = {}
        names = {name.lower(): name for name in known} if any_case else {name: name for name in known}
        for key, value in (item.value or {}).items():
            name = names.get(key.lower() if any_case else key)
            if name is not None:
                self._items[name] = value
                continue
            meant = _nearest(key, known)
            if warnings is None or meant in guarded:
                raise errors.ConfigError(_unknown(value, meant, known, "leave it out"))
            warnings.append(_unknown(value, meant, known, "it has no effect"))

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def get(self, key: str) -> Item | None:
        """Return the value as written, or None if the key is missing or null."""
        item = self._items.get(key)
        return None if item is None or item.value is None else item

    def at(self, key: str) -> Item:
        """Return the value; if the key is missing, a null with the line of the mapping."""
        return self._items.get(key) or Item(below(self._at.path, key), self._at.line, None)

    def missing(self, problem: str) -> errors.ConfigError:
        """Return the error for a missing key."""
        return self._at.error(problem)

    def flag(self, key: str) -> bool | None:
        """Return true or false, or None if the key is missing."""
        item = self.get(key)
        return None if item is None else truth(item)


def truth(item: Item) -> bool:
    """Return a value that must be true or false."""
    if not isinstance(item.value, bool):
        raise item.error("is neither true nor false")
    return item.value


def text(item: Item) -> str:
    """Return a value that must be text."""
    if not isinstance(item.value, str):
        raise item.error("is not text: put it in quotes")
    return item.value


def any_text(item: Item) -> str:
    """Return a value as text, also if it is a number or a truth value without quotes."""
    if isinstance(item.value, (bool, int, float)):
        return scalar_text(item.value)
    return text(item)


def whole(item: Item) -> int:
    """Return a value that must be a whole number."""
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise item.error("is not a whole number")
    return item.value


def entries(item: Item) -> tuple[Item, ...]:
    """Return a value that must be a list; null counts as an empty one."""
    if item.value is None:
        return ()
    if not isinstance(item.value, tuple):
        raise item.error("is not a list: start each entry with '- '")
    return item.value


def _nearest(key: str, known: Sequence[str]) -> str:
    """Return the known key that is most similar; empty if none is."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower()[:_MAX], lowered, n=1, cutoff=0.75)
    return lowered[near[0]] if near else ""


def _unknown(value: Item, meant: str, known: Sequence[str], remedy: str) -> str:
    hint = f"did you mean {meant}?" if meant else f"{remedy}; known here: {', '.join(known)}"
    return f"{located(value.path, value.line)} is unknown: {hint}"
