"""Label index: an inverted index of labels that evaluates a selector for all objects at once.

A set of rows is an integer with one bit per row, so an intersection or a union is one operation at any size. The cost
depends on the number of requirements and values, not on the number of objects.
"""

from __future__ import annotations

import bisect
import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpushare.nodefilters import selectors
from gpushare.nodefilters.selectors import Requirement, Selector

Rows = int  # a set of rows: bit n stands for row n

NONE: Final[Rows] = 0
_ONE: Final = (1).__lshift__


def union(several: Iterable[Rows]) -> Rows:
    """Return the union of several sets."""
    return functools.reduce(operator.or_, several, NONE)


def of_rows(rows: Iterable[int]) -> Rows:
    """Return the set of these rows."""
    return union(map(_ONE, rows))


def row_numbers(rows: Rows) -> Iterator[int]:
    """Return the rows of a set, in ascending order."""
    return (found.start() for found in re.finditer("1", bin(rows)[:1:-1]))


class Values:
    """The rows that have each value of one label key. Most values have a single row, which is stored as an int."""

    __slots__ = ("all", "by_value", "having", "numbers", "sets")

    def __init__(self) -> None:
        self.having: Rows = NONE
        self.by_value: dict[str, int | set[int]] = {}
        self.sets: dict[str, Rows] = {}  # cache, filled on first use
        self.all: dict[str, Rows] | None = None
        # cache: numeric values in ascending order, and their rows
        self.numbers: tuple[list[int], list[Rows]] | None = None

    def add(self, value: str, row: int) -> None:
        """Record that the row has this value."""
        self._change(value)
        known = self.by_value.get(value)
        if known is None:
            self.by_value[value] = row
        elif isinstance(known, set):
            known.add(row)
        else:
            self.by_value[value] = {known, row}
        self.having |= 1 << row

    def discard(self, value: str, row: int) -> None:
        """Remove the row from this value, which it must have."""
        self._change(value)
        known = self.by_value[value]
        if isinstance(known, set) and len(known) > 1:
            known.discard(row)
        else:
            del self.by_value[value]
        self.having &= ~(1 << row)

    def rows(self, value: str) -> Rows:
        """Return the rows with this value."""
        known = self.by_value.get(value)
        if known is None:
            return NONE
        if not isinstance(known, set):
            return 1 << known
        rows = self.sets.get(value)
        if rows is None:
            rows = self.sets[value] = of_rows(known)
        return rows

    def all_rows(self) -> Mapping[str, Rows]:
        """Return the rows of each value."""
        if self.all is None:
            self.all = {value: self.rows(value) for value in self.by_value}
        return self.all

    def compared(self, bound: int, *, above: bool) -> Rows:
        """Return the rows whose value is a number above the bound, or else below it."""
        if self.numbers is None:
            pairs = [(number, value) for value in self.by_value if (number := selectors.number(value)) is not None]
            pairs.sort()
            self.numbers = [number for number, _ in pairs], [self.rows(value) for _, value in pairs]
        numbers, rows = self.numbers
        at = slice(bisect.bisect_right(numbers, bound), None) if above else slice(bisect.bisect_left(numbers, bound))
        return union(rows[at])

    def _change(self, value: str) -> None:
        self.sets.pop(value, None)
        self.all = self.numbers = None


_NO_VALUES: Final = Values()


class Postings:
    """The labels of all rows. Drop a row before you put it again."""

    def __init__(self) -> None:
        self.every_row: Rows = NONE
        self._keys: dict[str, Values] = {}

    def put(self, row: int, labels: Mapping[str, str]) -> None:
        """Add a row with these labels."""
        self.every_row |= 1 << row
        for key, value in labels.items():
            if key not in self._keys:
                self._keys[key] = Values()
            self._keys[key].add(value, row)

    def drop(self, row: int, labels: Mapping[str, str]) -> None:
        """Remove a row; `labels`: the ones it was added with."""
        self.every_row &= ~(1 << row)
        for key, value in labels.items():
            self._keys[key].discard(value, row)
            if not self._keys[key].having:
                del self._keys[key]

    def having(self, key: str) -> Rows:
        """Return the rows that have this key."""
        return self._keys.get(key, _NO_VALUES).having

    def of_value(self, key: str, value: str) -> Rows:
        """Return the rows that have this key with this value."""
        return self._keys.get(key, _NO_VALUES).rows(value)

    def by_value(self, key: str) -> Mapping[str, Rows]:
        """Return the rows of each value of a key."""
        return self._keys.get(key, _NO_VALUES).all_rows()

    def matching(self, selector: Selector) -> Rows:
        """Return the rows whose labels `selector` matches."""
        rows = NONE if selector.is_void else self.every_row
        for requirement in selector.requirements:
            if not rows:
                break
            rows &= self._holding(requirement)
        return rows

    def _holding(self, requirement: Requirement) -> Rows:
        """Return the rows whose labels satisfy the requirement."""
        values = self._keys.get(requirement.key)
        having = NONE if values is None else values.having
        if requirement.operator == "Exists":
            return having
        if requirement.operator == "DoesNotExist":
            return self.every_row & ~having
        if requirement.operator in {"In", "NotIn"}:
            named = NONE if values is None else union(map(values.rows, requirement.values))
            return named if requirement.operator == "In" else self.every_row & ~named
        bound = selectors.number(*requirement.values) if len(requirement.values) == 1 else None
        if values is None or bound is None or requirement.operator not in {"Gt", "Lt"}:
            return NONE
        return values.compared(bound, above=requirement.operator == "Gt")
