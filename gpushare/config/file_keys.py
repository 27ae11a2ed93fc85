"""Typed access to the keys of a mapping in the file. An invalid value is an error. An unknown key is a warning, or an
error where it would change the use of a GPU.

NVIDIA's plugin ignores the case of the keys of some objects, and of others not: see `any_case`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gpushare import errors
from gpushare.config.yaml_tree import Item, below, located, scalar_text

_MAX: Final = 64  # of a key that is compared with the known ones


class Fields:
    """The entries of one mapping of the file. null counts as an empty mapping.

    warnings: collects unknown keys; None: they are errors. guarded: keys whose misspelling is an error, because without
    them GPUs are used for something else.
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
                raise errors.ConfigError(_unknown(value, meant, known, "remove it"))
            warnings.append(_unknown(value, meant, known, "it has no effect"))

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def get(self, key: str) -> Item | None:
        """Return the value, or None if the key is absent or null."""
        item = self._items.get(key)
        return None if item is None or item.value is None else item

    def at(self, key: str) -> Item:
        """Return the value; if absent, a null item at the mapping's line."""
        return self._items.get(key) or Item(below(self._at.path, key), self._at.line, None)

    def missing(self, problem: str) -> errors.ConfigError:
        """Return the error that the mapping lacks a key."""
        return self._at.error(problem)

    def flag(self, key: str) -> bool | None:
        """Return true or false, or None if absent."""
        item = self.get(key)
        return None if item is None else truth(item)


def truth(item: Item) -> bool:
    """Return a boolean."""
    if not isinstance(item.value, bool):
        raise item.error("is neither true nor false")
    return item.value


def text(item: Item) -> str:
    """Return a string."""
    if not isinstance(item.value, str):
        raise item.error("is not text: put it in quotes")
    return item.value


def any_text(item: Item) -> str:
    """Return a value as text, including a number or boolean written without quotes."""
    if isinstance(item.value, (bool, int, float)):
        return scalar_text(item.value)
    return text(item)


def whole(item: Item) -> int:
    """Return a whole number."""
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise item.error("is not a whole number")
    return item.value


def entries(item: Item) -> tuple[Item, ...]:
    """Return a list; null counts as an empty one."""
    if item.value is None:
        return ()
    if not isinstance(item.value, tuple):
        raise item.error("is not a list: start each entry with '- '")
    return item.value


def _nearest(key: str, known: Sequence[str]) -> str:
    """Return the known key that was probably meant, or ""."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower()[:_MAX], lowered, n=1, cutoff=0.75)
    return lowered[near[0]] if near else ""


def _unknown(value: Item, meant: str, known: Sequence[str], remedy: str) -> str:
    hint = f"did you mean {meant}?" if meant else f"{remedy}; known keys: {', '.join(known)}"
    return f"{located(value.path, value.line)} is unknown: {hint}"
