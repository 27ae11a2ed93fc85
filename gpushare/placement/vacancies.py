"""Vacancies: each node as it would be without one of its pods, as columns of a separate grid.

One pass over the arrays gives the worth of all these nodes, and the cost of a pod there. From these follow the best
chains of moves, in which each pod takes the place of the next: for each length, the best chain to a pod extends the
best chains of the length before by one pod. That takes (request keys × pods) steps, without a search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpushare import policies
from gpushare.gpunode import Gpu
from gpushare.mix import Host
from gpushare.placement.grid import Floats, Grid, Ints, Room
from gpushare.placement.pricing import Prices
from gpushare.placement.request_key import RequestKey
from gpushare.placement.scoring import Scoring
from gpushare.placement.view import NodeView
from gpushare.placement.worth import Worth
from gpushare.request import Request

_NOBODY = -1


class Vacancies:
    """Vacancies by key; a key keeps its slot until it is dropped. Not thread-safe."""

    def __init__(self, worth: Worth, kinds: Sequence[Gpu | None], prices: Prices) -> None:
        """`worth`: the mix's tables; `kinds`: the GPU kinds that worth and prices are indexed by."""
        self._grid = Grid()
        for kind in kinds:
            if kind is not None:
                self._grid.kind_of(kind)
        self._scoring = Scoring(self._grid)
        self._scoring.learn(worth)
        self._scoring.fix(prices)
        self._prices = prices

    def put(self, key: str, view: NodeView, room: Room) -> int:
        """Add a node without the pod, with this room; return the slot."""
        node = dataclasses.replace(view.node, name=key)
        return self._grid.put(dataclasses.replace(view, node=node), room)

    def drop(self, key: str) -> None:
        """Remove a vacancy."""
        self._grid.drop(key)

    def chains(
        self,
        slots: Sequence[int],
        shape: Sequence[int],
        node: Sequence[int],
        *,
        shapes: Sequence[Sequence[tuple[Request, Host]]],
        values: Floats,
        lowest: Sequence[float],
        waiting: Mapping[int, float],
        most: int,
    ) -> list[tuple[float, list[int]]]:
        """Return the chains of the pods in these slots with their gain; pods are indexes into `slots`.

        shape, node: numbers, by pod; values [node]: the current worth of each node. shapes: each in the variants that
        may be placed.
        """
        at, nodes = np.array(slots, np.int64), np.array(node, np.int64)
        freed = self._scoring.values(at, self._prices) - values[nodes]
        costs = np.array(
            [np.minimum.reduce([self._costs(*variant)[at] for variant in variants]) for variants in shapes]
        )
        numbers = np.array(shape, np.int64)
        return [*_chains(freed, costs, np.array(lowest), numbers, nodes, waiting=waiting, most=most)]

    def _costs(self, request: Request, host: Host) -> Floats:
        """Return [slot] the worth that the pod would take; infinite where it does not fit."""
        shape = dataclasses.replace(RequestKey.for_request(request, policy="", host=host), policy=policies.DEFAULT)
        return self._scoring.costs(shape)[1]


@dataclasses.dataclass(frozen=True, slots=True)
class _Level:
    """The best chains with a certain number of moves, by the pod that still needs a place [slot]."""

    gained: Floats
    before: Ints  # slot of the pod that takes its place; _NOBODY if it moves first


def _chains(
    freed: Floats, costs: Floats, lowest: Floats, shape: Ints, node: Ints, *, waiting: Mapping[int, float], most: int
) -> Iterator[tuple[float, list[int]]]:
    """Yield each chain of at most `most` pods with a gain: the gain, and the pods in the order of their moves.

    freed [pod]: the worth that its node gains when it leaves; costs [shape, pod]: the worth that another pod takes in
    its place; lowest [shape]: the lowest cost anywhere; shape, node [pod]: numbers; waiting: shape → value of placing
    such a pod. No two chains of one length begin with the same move.
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
    """Return pods that leave; a waiting pod takes the place if that is worth more."""
    gained = freed.copy()
    for shape, size in first.items():
        np.maximum(gained, freed + size - costs[shape], out=gained)
    return _Level(gained, np.full(len(freed), _NOBODY))


def _next(level: _Level, freed: Floats, costs: Floats, shape: Ints, node: Ints) -> _Level:
    """Return chains in which each pod's place is taken by the pod of another node that gains most."""
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
