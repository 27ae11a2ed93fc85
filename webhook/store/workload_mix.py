"""WorkloadMix: the mix of requests in the cluster, and when placement learns it. Pure.

The mix counts the requests of the pods that have a share now. So it needs no stored state: after a restart it is
complete once the pods are read, and it is the same in every replica. A lesson is due when a third of the pods with a
share have changed since the last one, and FEWEST at least; or a third of their compute, and MIN_PERCENT at least,
because a few pods may be most of a cluster.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Final

from gpushare.mix import ENOUGH_PODS, Host, Mix, RequestClass, classes_of
from gpushare.request import Request

FEWEST: Final = 50
PART: Final = 3  # one third
MIN_PERCENT: Final = 800  # of a GPU: eight whole ones

Asks = tuple[RequestClass, ...]  # of one pod


class WorkloadMix:
    """Counts requests of pods. `due` is called when a lesson is due, and again with every change until `snapshot`."""

    def __init__(self, due: Callable[[], object] = lambda: None) -> None:
        self._due = due
        self._counts: collections.Counter[RequestClass] = collections.Counter()
        self._pods = 0
        self._percent = 0  # requested compute, 100 per GPU
        self._turnover = self._turnover_percent = 0  # since the last lesson
        self._known = self._known_percent = 0  # at the last lesson

    def change(self, before: Asks, after: Asks) -> None:
        """Record that a pod's request has changed; empty while it has no share."""
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

    def snapshot(self) -> Mix:
        """Return the mix, and begin to count towards the next lesson."""
        self._turnover, self._known = 0, self._pods
        self._turnover_percent, self._known_percent = 0, self._percent
        return Mix.from_counts(self._counts, pods=self._pods)


def _percent(asks: Asks) -> int:
    return sum(asked.gpus * asked.request_percent for asked in asks)


def asks_of(request: Request | str, amounts: Iterable[tuple[str, int]]) -> Asks:
    """Return the classes of a request, empty if it is invalid; `amounts`: milli-CPUs, bytes … that the pod takes of its
    node.
    """
    if isinstance(request, str):
        return ()
    there = dict(amounts)
    return tuple(classes_of(request, Host(there.get("cpu", 0), there.get("memory", 0))))
