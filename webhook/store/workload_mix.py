"""WorkloadMix: what this cluster asks for, and when placement learns it. Pure.

The mix is what the pods that hold a share now have asked for, each counted once. So it needs no memory of its own:
after a restart it is there as soon as the pods have been read, and it is the same in every replica. A lesson is due
when as many pods with a share have come and gone since the last as a third of those there were, and FEWEST at least.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Final

from gpushare.mix import Host, Mix, RequestClass, classes_of
from gpushare.request import Request

FEWEST: Final = 50
PART: Final = 3  # one in so many

Asks = tuple[RequestClass, ...]  # what one pod asks for


class WorkloadMix:
    """Counts pods as they come and go. `due` is called when a lesson is."""

    def __init__(self, due: Callable[[], object] = lambda: None) -> None:
        self._due = due
        self._counts: collections.Counter[RequestClass] = collections.Counter()
        self._pods = 0
        self._turnover = 0  # since the last lesson
        self._known = 0  # pods there were then

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
        self._turnover += 1
        if self._turnover == max(FEWEST, self._known // PART):
            self._due()

    def take(self) -> Mix:
        """The mix now; no lesson is due then."""
        self._turnover, self._known = 0, self._pods
        return Mix.of(self._counts, pods=self._pods)


def asks_of(request: Request | str, amounts: Iterable[tuple[str, int]]) -> Asks:
    """What a pod asks for; `amounts`: milli-CPUs, bytes … of its node. Nothing where it is invalid."""
    if isinstance(request, str):
        return ()
    there = dict(amounts)
    return tuple(classes_of(request, Host(there.get("cpu", 0), there.get("memory", 0))))
