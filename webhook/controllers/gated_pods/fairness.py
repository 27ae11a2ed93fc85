"""Fairness: whose turn it is among units of one priority, and how many of one namespace are tried in a round. Pure.

Namespaces take turns, so that nobody is behind all that somebody else has created. To find that a pod fits nowhere
takes milliseconds at a thousand nodes, and pods that differ have to be tried one by one: so a namespace has so many
tries in a round. Half of them are its first units', the others' go round, after everybody's first.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from webhook.controllers.gated_pods.gang import Unit

TRIES: Final = 32  # of one namespace in a round that end in vain; those that are like one that was tried are free
LOOKS: Final = 1024  # units of one namespace in a round that are looked at for it


class Fairness:
    """Remembers how far each namespace has come."""

    def __init__(self, *, tries: int = TRIES, looks: int = LOOKS) -> None:
        self._most_tries = tries
        self._most_looks = looks
        self._oldest = tries // 2
        self._from: dict[str, int] = {}  # where among its units, but for the oldest, a namespace goes on
        self._tries: collections.Counter[str] = collections.Counter()
        self._looks: collections.Counter[str] = collections.Counter()

    def begin(self, units: Sequence[Unit]) -> list[Unit]:
        """A new round: these units, which come by priority and age, in the order of their turns."""
        by_namespace: dict[str, list[Unit]] = collections.defaultdict(list)
        for unit in units:
            by_namespace[unit.namespace].append(unit)
        moved = {name: max(0, self._looks[name] - self._oldest) for name in by_namespace}
        self._from = {name: self._from.get(name, 0) + moved[name] for name in by_namespace}
        self._tries.clear()
        self._looks.clear()
        first, later = (
            zip(*(self._divided(name, own) for name, own in by_namespace.items()), strict=True) if units else ((), ())
        )
        return [*_in_turn(first), *_one_each(later)]

    def may_try(self, unit: Unit) -> bool:
        """Whether its namespace has a try left in this round."""
        name = unit.namespace
        if self._tries[name] >= self._most_tries or self._looks[name] >= self._most_looks:
            return False
        self._looks[name] += 1
        return True

    def in_vain(self, unit: Unit) -> None:
        """It was tried and fits nowhere."""
        self._tries[unit.namespace] += 1

    def _divided(self, name: str, own: list[Unit]) -> tuple[list[Unit], list[Unit]]:
        """Those that come first, all where none has to be left out; and the others from where the last round ended."""
        if len(own) <= self._most_tries:
            self._from[name] = 0
            return own, []
        first, rest = own[: self._oldest], own[self._oldest :]
        at = self._from[name] = self._from[name] % len(rest)
        return first, [*rest[at:], *rest[:at]]


def _in_turn(queues: Iterable[list[Unit]]) -> Iterator[Unit]:
    """One of each namespace after the other, within a priority; who has waited longest begins."""
    by_priority: dict[int, list[list[Unit]]] = collections.defaultdict(list)
    for queue in queues:
        own: dict[int, list[Unit]] = collections.defaultdict(list)
        for unit in queue:
            own[unit.order[0]].append(unit)
        for priority, units in own.items():
            by_priority[priority].append(units)
    for _, several in sorted(by_priority.items()):
        several.sort(key=lambda units: units[0].order)
        yield from _one_each(several)


def _one_each(several: Iterable[list[Unit]]) -> Iterator[Unit]:
    for row in itertools.zip_longest(*several):
        yield from (unit for unit in row if unit is not None)
