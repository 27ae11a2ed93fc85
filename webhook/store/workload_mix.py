"""WorkloadMix: what this cluster asks for, and when placement learns it. Pure.

The mix is what the pods that hold a share now have asked for, each counted once. So it needs no memory of its own:
after a restart it is there as soon as the pods have been read, and it is the same in every replica. A lesson is due
when as many pods with a share have come and gone since the last as a third of those there were, and FEWEST at least; or
as much compute as a third of what they asked for, MIN_PERCENT at least: a few pods may be most of a cluster.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Final

from gpushare.mix import ENOUGH_PODS, Host, Mix, RequestClass, classes_of
from gpushare.request import Request

FEWEST: Final = 50
PART: Final = 3  # one in so many
MIN_PERCENT: Final = 800  # of a GPU: eight whole ones

Asks = tuple[RequestClass, ...]  # what one pod asks for


class WorkloadMix:
    """Counts pods as they come and go. `due` is called when a lesson is, and with every change until it is taken."""

    def __init__(self, due: Callable[[], object] = lambda: None) -> None:
        self._due = due
        self._counts: collections.Counter[RequestClass] = collections.Counter()
        self._pods = 0
        self._percent = 0  # compute that they ask for, 100 a GPU
        self._turnover = self._turnover_percent = 0  # since the last lesson
        self._known = self._known_percent = 0  # what there was then

    def change(self, before: Asks, after: Asks) -> None:
        """A pod that asked for `before` asks for `after`; both empty while it holds no share."""
        if before == after:
            return
        for asked in before:
            self._counts[asked] -= 1
            if not self._counts[asked]:
                del self._counts[asked]
        self._counts.update(after)
        self._pods += bool(after) - bool(before)
        self._percent += _percent(after) - _percent(before)
        self._turnover += 1
        self._turnover_percent += max(_percent(before), _percent(after))
        by_pods = self._turnover >= max(FEWEST, self._known // PART)
        by_compute = self._turnover_percent >= max(MIN_PERCENT, self._known_percent // PART)
        if by_pods or (by_compute and self._pods >= ENOUGH_PODS):
            self._due()

    def take(self) -> Mix:
        """The mix now; no lesson is due then."""
        self._turnover, self._known = 0, self._pods
        self._turnover_percent, self._known_percent = 0, self._percent
        return Mix.from_counts(self._counts, pods=self._pods)


def _percent(asks: Asks) -> int:
    return sum(asked.gpus * asked.request_percent for asked in asks)


def asks_of(request: Request | str, amounts: Iterable[tuple[str, int]]) -> Asks:
    """What a pod asks for; `amounts`: milli-CPUs, bytes … of its node. Nothing where it is invalid."""
    if isinstance(request, str):
        return ()
    there = dict(amounts)
    return tuple(classes_of(request, Host(there.get("cpu", 0), there.get("memory", 0))))
