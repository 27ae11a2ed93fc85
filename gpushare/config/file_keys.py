"""Typed access to the keys of a mapping in the file: what is unknown is a warning, or an error where it would change
what a GPU is used for; what is wrong is an error.

NVIDIA's plugin takes the keys of some objects in any case of letters and those of others not: `any_case` says which.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gpushare import errors
from gpushare.config.yaml_tree import Item, below, located, scalar_text

_MAX: Final = 64  # of a key that is compared with those that are known


class Fields:
    """The entries of one mapping of the file. null counts as an empty mapping.

    warnings: where keys that are unknown are noted; None: they are refused.
    guarded: keys that nobody may have misspelt, as without them GPUs are used for something else.
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
        """The value as it stands, or None if the key is not there or null."""
        item = self._items.get(key)
        return None if item is None or item.value is None else item

    def at(self, key: str) -> Item:
        """The value; where there is none, one that is null and stands at the mapping's line."""
        return self._items.get(key) or Item(below(self._at.path, key), self._at.line, None)

    def missing(self, problem: str) -> errors.ConfigError:
        """The error that the mapping lacks something."""
        return self._at.error(problem)

    def flag(self, key: str) -> bool | None:
        """true or false, or None where it is not said."""
        item = self.get(key)
        return None if item is None else truth(item)


def truth(item: Item) -> bool:
    """A value that is true or false."""
    if not isinstance(item.value, bool):
        raise item.error("is neither true nor false")
    return item.value


def text(item: Item) -> str:
    """A value that is text."""
    if not isinstance(item.value, str):
        raise item.error("is not text: put it in quotes")
    return item.value


def any_text(item: Item) -> str:
    """A value as text, also of a number or truth value that somebody wrote without quotes."""
    if isinstance(item.value, (bool, int, float)):
        return scalar_text(item.value)
    return text(item)


def whole(item: Item) -> int:
    """A value that is a whole number."""
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise item.error("is not a whole number")
    return item.value


def entries(item: Item) -> tuple[Item, ...]:
    """A value that is a list; null counts as an empty one."""
    if item.value is None:
        return ()
    if not isinstance(item.value, tuple):
        raise item.error("is not a list: start each entry with '- '")
    return item.value


def _nearest(key: str, known: Sequence[str]) -> str:
    """Which of them was meant; empty where it is like none."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower()[:_MAX], lowered, n=1, cutoff=0.75)
    return lowered[near[0]] if near else ""


def _unknown(value: Item, meant: str, known: Sequence[str], remedy: str) -> str:
    hint = f"did you mean {meant}?" if meant else f"{remedy}; known here: {', '.join(known)}"
    return f"{located(value.path, value.line)} is unknown: {hint}"
