"""Chains of pods of which each takes the place of the next, and what they gain, over arrays.

For each length the best chain to every pod is the best of the length before with one more pod: the shapes of pods times
the pods, and no search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from gpushare.placement.grid import Floats, Ints

_NOBODY = -1


@dataclasses.dataclass(frozen=True, slots=True)
class _Level:
    """Chains in which so many pods move, by the pod that needs a place yet [slot]."""

    gained: Floats
    before: Ints  # the slot of the pod that takes its place, _NOBODY where it is the first


def chains(
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
