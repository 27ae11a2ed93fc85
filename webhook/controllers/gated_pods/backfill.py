"""Backfill: how long a pod that waits may be passed over before free capacity is held for it. Pure.

Whoever fits is placed, although somebody ahead of it in the queue waits for more room: else one large pod would idle a
cluster. But small ones could pass a large one for ever, so there is a bound, after which what comes free on GPUs chosen
for the one that waits goes to nobody behind it (see `backfill_reservations`). Nobody is passed over who could not run
anyway.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Final

from webhook.controllers import queue
from webhook.controllers.gated_pods.gang import Unit
from webhook.controllers.gated_pods.pod_index import PodIndex
from webhook.pods.stored_pod import Pod


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """How much passing is too much.

    patience_seconds: waited for so long, and passed over at least once. passes: or passed over so often.
    most_holding: for so many units at once capacity is held; the others' time comes when these are placed.
    of_one_namespace: for so many of one.
    """

    patience_seconds: float = 300.0
    passes: int = 100
    most_holding: int = 4
    of_one_namespace: int = 1


DEFAULT: Final = Bound()


def is_entitled(bound: Bound, *, waited_seconds: float, passes: int) -> bool:
    """Whether it has been passed over long enough."""
    return passes >= bound.passes or (passes > 0 and waited_seconds >= bound.patience_seconds)


def waited_seconds(unit: Unit, *, now: float) -> float:
    """Since when all of it was there; nothing for a time that is invalid."""
    _, since, _ = unit.order
    try:
        return max(0.0, now - datetime.datetime.fromisoformat(since).timestamp())
    except ValueError:
        return 0.0


class Passes:
    """Counts for each unit the pods behind it that were placed, or grew, while it waited.

    What became of a unit before it was first seen to wait is unknown: of that only those count that are still there
    and were created after it, so that it may be too few, as after a failover, never too many.
    """

    def __init__(self) -> None:
        self._passes: dict[str, int] = {}
        self._placed: dict[str, queue.Order] = {}
        self._counted: set[str] = set()  # at the last count, and whom our copy does not show as placed yet
        self._grown: list[queue.Order] = []

    def placed(self, pod: Pod) -> None:
        """We have placed it ourselves: it counts even if it is gone before the next count."""
        self._placed[pod.ref.uid] = queue.order(pod)

    def grew(self, pod: Pod) -> None:
        """One that was placed long ago has taken more where it is: that passes over those ahead of it as well."""
        self._grown.append(queue.order(pod))

    def count(self, pods: PodIndex, units: Sequence[Unit]) -> Mapping[str, int]:
        """By uid of the unit's first member."""
        shown = pods.newly_placed()
        new = (order for uid, order in {**shown, **self._placed}.items() if uid not in self._counted)
        news = sorted([*new, *self._grown]) if units else []  # where very many are new, sorting takes a while
        self._counted = {*shown, *(uid for uid in (*self._counted, *self._placed) if uid in pods.waiting)}
        self._placed, self._grown = {}, []
        created: dict[int, list[str]] = collections.defaultdict(list)  # by priority, in order
        for priority, at, _ in news:
            created[priority].append(at)
        counts = {}
        for unit in units:
            uid = unit.uids[0]
            if uid in self._passes:
                counts[uid] = self._passes[uid] + len(news) - bisect.bisect_right(news, unit.order)
            else:
                counts[uid] = _created_after(unit, created)
        self._passes = counts
        return counts


def _created_after(unit: Unit, created: Mapping[int, Sequence[str]]) -> int:
    """How many of those came after it and are no more important."""
    behind, since, _ = unit.order
    return sum(len(times) - bisect.bisect_right(times, since) for moment, times in created.items() if moment >= behind)
