"""Vacancies: nodes as they would be if one of their pods left, each as a column of a grid of its own.

So one pass over the arrays says what every one of those nodes would be worth, and what a pod would cost there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpushare import policies
from gpushare.gpu import Gpu
from gpushare.mix import Host, Mix
from gpushare.placement.grid import Floats, Grid, Ints, Room
from gpushare.placement.pricing import Prices
from gpushare.placement.request_key import RequestKey
from gpushare.placement.scoring import Scoring
from gpushare.placement.view import NodeView
from gpushare.placement.worth import Worth
from gpushare.request import Request

_NOBODY = -1


class Vacancies:
    """Keyed by any string; a key has the same slot until it is dropped. Not for threads."""

    def __init__(self, mix: Mix, worth: Worth, kinds: Sequence[Gpu | None], prices: Prices) -> None:
        """`worth`: the mix's tables; `kinds`: those that it and the prices are of, in their order."""
        self._grid = Grid()
        for kind in kinds:
            if kind is not None:
                self._grid.kind_of(kind)
        self._scoring = Scoring(self._grid, mix)
        self._scoring.learn(mix, worth)
        self._scoring.fix(prices)
        self._prices = prices

    def put(self, key: str, view: NodeView, room: Room) -> int:
        """A node without the pod, with so much CPU and memory free; its slot."""
        node = dataclasses.replace(view.node, name=key)
        return self._grid.put(dataclasses.replace(view, node=node), room)

    def drop(self, key: str) -> None:
        """This one is no more."""
        self._grid.drop(key)

    def chains(
        self,
        slots: Sequence[int],
        shape: Sequence[int],
        node: Sequence[int],
        *,
        shapes: Sequence[tuple[Request, Host]],
        values: Floats,
        lowest: Sequence[float],
        waiting: Mapping[int, float],
        most: int,
    ) -> list[tuple[float, list[int]]]:
        """`chains.chains` of the pods that left these slots; the places in `slots` stand for the pods.

        shape, node: their numbers; values [node]: what each node is worth as it is now.
        """
        at, nodes = np.array(slots, np.int64), np.array(node, np.int64)
        freed = self._scoring.values(at, self._prices) - values[nodes]
        costs = np.array([self._costs(request, host)[at] for request, host in shapes])
        numbers = np.array(shape, np.int64)
        return [*_chains(freed, costs, np.array(lowest), numbers, nodes, waiting=waiting, most=most)]

    def _costs(self, request: Request, host: Host) -> Floats:
        """[slot] what of its worth the pod would take; infinite where it does not fit."""
        shape = dataclasses.replace(RequestKey.for_request(request, policy="", host=host), policy=policies.DEFAULT)
        return self._scoring.costs(shape)[1]


@dataclasses.dataclass(frozen=True, slots=True)
class _Level:
    """Chains in which so many pods move, by the pod that needs a place yet [slot]."""

    gained: Floats
    before: Ints  # the slot of the pod that takes its place, _NOBODY where it is the first


def _chains(
    freed: Floats, costs: Floats, lowest: Floats, shape: Ints, node: Ints, *, waiting: Mapping[int, float], most: int
) -> Iterator[tuple[float, list[int]]]:
    """What each chain of at most so many pods gains, if anything, and its pods in the order in which they have to move.

    freed [pod]: what its node gains when it leaves; costs [shape, pod]: what another takes of that in its place; lowest
    [shape]: what one takes where it takes least; shape, node [pod]: numbers; waiting: shape → what such a pod is worth.
    No two chains of one length begin with the same move.
    """
    levels = [_first(freed, costs, waiting)]
    while len(levels) < most:
        levels.append(_next(levels[-1], freed, costs, shape, node))
    for length, level in enumerate(levels):
        promise = level.gained - lowest[shape]
        for end in np.flatnonzero(promise > 0).tolist():
            path = [end]
            for earlier in reversed(levels[1 : length + 1]):
                path.append(int(earlier.before[path[-1]]))
            if len({int(node[at]) for at in path}) == len(path):
                yield float(promise[end]), path


def _first(freed: Floats, costs: Floats, first: Mapping[int, float]) -> _Level:
    """Pods that leave, and in the place of which one comes that waits, if that is worth more."""
    gained = freed.copy()
    for shape, size in first.items():
        np.maximum(gained, freed + size - costs[shape], out=gained)
    return _Level(gained, np.full(len(freed), _NOBODY))


def _next(level: _Level, freed: Floats, costs: Floats, shape: Ints, node: Ints) -> _Level:
    """In the place of each pod the one comes with which most is gained, of another node."""
    gained, before = np.full(len(freed), -np.inf), np.full(len(freed), _NOBODY)
    for number, cost in enumerate(costs):
        alike = np.flatnonzero(shape == number)
        if not len(alike):
            continue
        best = int(alike[level.gained[alike].argmax()])
        others = alike[node[alike] != node[best]]
        other = int(others[level.gained[others].argmax()]) if len(others) else _NOBODY
        for taker, where in ((best, node != node[best]), (other, node == node[best])):
            if taker != _NOBODY:
                value = np.where(where, level.gained[taker] - cost, -np.inf)
                better = value > gained
                gained[better], before[better] = value[better], taker
    return _Level(gained + freed, before)
