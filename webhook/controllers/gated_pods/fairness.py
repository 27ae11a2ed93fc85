"""Fairness among gated pods: the order of turns, and how often a pod may be overtaken. Pure.

Namespaces of one priority take turns. It takes milliseconds at a thousand nodes to find that a pod fits nowhere, so
each namespace has a number of tries per round: half are for its first units, and the rest rotate among the others.

Pods that fit may overtake larger ones ahead of them (backfill); otherwise one large pod would idle the cluster. Small
pods could overtake it forever, so then a backfill reservation keeps freed capacity for it (`backfill_reservations`).
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from webhook.controllers import queue
from webhook.controllers.gated_pods.waiting_units import PodIndex, Unit
from webhook.pods.stored_pod import Pod

MAX_FAILED_TRIES: Final = 32  # of one namespace in a round; units like one that was tried are free
MAX_VISITS: Final = 1024  # units of one namespace that a round visits


class Fairness:
    """The order of turns, the tries of each namespace in this round, and where the next round continues."""

    def __init__(self, *, max_failed_tries: int = MAX_FAILED_TRIES, max_visits: int = MAX_VISITS) -> None:
        self._max_failed_tries = max_failed_tries
        self._max_visits = max_visits
        self._first = max_failed_tries // 2
        self._offset: dict[str, int] = {}  # namespace -> where in its rotation the round begins
        self._failed_tries: collections.Counter[str] = collections.Counter()
        self._visits: collections.Counter[str] = collections.Counter()

    def begin(self, units: Sequence[Unit]) -> list[Unit]:
        """Begin a round: sort these units, which come by priority and age, by turns."""
        by_namespace: dict[str, list[Unit]] = collections.defaultdict(list)
        for unit in units:
            by_namespace[unit.namespace].append(unit)
        moved = {name: max(0, self._visits[name] - self._first) for name in by_namespace}
        self._offset = {name: self._offset.get(name, 0) + moved[name] for name in by_namespace}
        self._failed_tries.clear()
        self._visits.clear()
        first, later = (
            zip(*(self._split(name, own) for name, own in by_namespace.items()), strict=True) if units else ((), ())
        )
        return [*_take_turns(first), *_round_robin(later)]

    def may_try(self, unit: Unit) -> bool:
        """Whether the unit's namespace has a try left in this round; counts a visit."""
        name = unit.namespace
        if self._failed_tries[name] >= self._max_failed_tries or self._visits[name] >= self._max_visits:
            return False
        self._visits[name] += 1
        return True

    def count_failed_try(self, unit: Unit) -> None:
        self._failed_tries[unit.namespace] += 1

    def _split(self, name: str, own: list[Unit]) -> tuple[list[Unit], list[Unit]]:
        """Return the units with a fixed turn, and the rotating ones from where the last round ended."""
        if len(own) <= self._max_failed_tries:
            self._offset[name] = 0
            return own, []
        first, rest = own[: self._first], own[self._first :]
        at = self._offset[name] = self._offset[name] % len(rest)
        return first, [*rest[at:], *rest[:at]]


@dataclasses.dataclass(frozen=True, slots=True)
class OvertakeLimits:
    """Which units are entitled to a backfill reservation, and how many have one at a time."""

    patience_seconds: float = 300.0  # a unit that has waited for so long, and was overtaken or lacks lent memory
    max_overtakes: int = 100  # a unit that was overtaken so often
    max_reserving: int = 4
    max_reserving_per_namespace: int = 1


DEFAULT_LIMITS: Final = OvertakeLimits()


class OvertakeCounter:
    """Counts, for each waiting unit, the pods behind it that were placed, or whose shares grew, meanwhile.

    For a unit that is new to this placer, only pods count that exist and were created after it. After a failover the
    count may therefore be too low, but never too high.
    """

    def __init__(self) -> None:
        self._overtakes: dict[str, int] = {}
        self._placed: dict[str, queue.Order] = {}
        self._counted: set[str] = set()  # at the last count, and pods that our copy does not show as placed yet
        self._grown: list[queue.Order] = []

    def placed(self, pod: Pod) -> None:
        self._placed[pod.ref.uid] = queue.order(pod)

    def grew(self, pod: Pod) -> None:
        """Record a pod whose share has grown: it overtakes the waiting units ahead of it."""
        self._grown.append(queue.order(pod))

    def count(self, pods: PodIndex, units: Sequence[Unit]) -> Mapping[str, int]:
        """Return how often each unit was overtaken, by the UID of its first member."""
        shown = pods.newly_placed()
        new = (order for uid, order in {**shown, **self._placed}.items() if uid not in self._counted)
        news = sorted([*new, *self._grown]) if units else []  # sorting takes a while if very many are new
        self._counted = {*shown, *(uid for uid in (*self._counted, *self._placed) if uid in pods.waiting)}
        self._placed = {}
        self._grown = []
        created: dict[int, list[str]] = collections.defaultdict(list)  # by priority, in order
        for priority, at, _ in news:
            created[priority].append(at)
        counts = {}
        for unit in units:
            uid = unit.uids[0]
            if uid in self._overtakes:
                counts[uid] = self._overtakes[uid] + len(news) - bisect.bisect_right(news, unit.order)
            else:
                behind, since, _ = unit.order
                later = (times for priority, times in created.items() if priority >= behind)
                counts[uid] = sum(len(times) - bisect.bisect_right(times, since) for times in later)
        self._overtakes = counts
        return counts


def _take_turns(queues: Iterable[list[Unit]]) -> Iterator[Unit]:
    """Yield units by priority, and within one priority round-robin by namespace, beginning with the oldest unit."""
    by_priority: dict[int, list[list[Unit]]] = collections.defaultdict(list)
    for own_queue in queues:
        own: dict[int, list[Unit]] = collections.defaultdict(list)
        for unit in own_queue:
            own[unit.order[0]].append(unit)
        for priority, units in own.items():
            by_priority[priority].append(units)
    for _, several in sorted(by_priority.items()):
        several.sort(key=lambda units: units[0].order)
        yield from _round_robin(several)


def _round_robin(several: Iterable[list[Unit]]) -> Iterator[Unit]:
    for row in itertools.zip_longest(*several):
        yield from (unit for unit in row if unit is not None)
