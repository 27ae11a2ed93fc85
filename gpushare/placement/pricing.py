"""Prices: what is scarce now costs more: kinds of GPU that much of the demand names, and whole sets of GPUs on a node.

Both compare what is free with what the mix would ask of it next, if it asked for all that is free. Kinds: every part
of the demand spreads over the kinds that will do, away from expensive ones; a kind that is asked for more than is
free gets dearer, any other cheaper. Sets: the demand's part of all that is free, and a few sets more but never more
than as many again, over what could still take it whole, squared: a set that is plenty costs next to nothing, the last
ones cost as much as their GPUs are worth.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gpushare.placement.grid import Floats, Ints
from gpushare.placement.worth import Worth

_HORIZON = 0.95  # of what is free is asked for next: a little slack, so that no kind is expensive where all will do
_EAGERNESS = 0.1  # how large a difference in price turns the demand away
_STEP = 0.05
_STEPS = 50
_SLACK_GPUS = 1.0  # so that a kind with next to nothing free is no scarcer than one with a GPU
_SPARE_SETS = 3  # of each class are worth keeping: requests come in no even order; no more than are asked for
_GRAIN = 0.1  # prices of sets change in such steps


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """In GPUs: `kinds` [kind] for a GPU of each kind, `sets` [set] for each GPU of a whole set of the worth's."""

    kinds: Floats
    sets: Floats


def free(worth: Worth) -> Prices:
    """The prices where nothing is scarce."""
    return Prices(np.zeros(worth.kinds), np.zeros(len(worth.sets)))


def prices(worth: Worth, node_kind: Ints, gpus: Floats, copies: Floats, *, before: Prices) -> Prices:
    """The prices now. gpus: [n] what is free of each node's GPUs by worth; copies: [set, n] of whole sets.

    before: the last prices, to start from.
    """
    by_kind: Floats = np.bincount(node_kind, gpus, minlength=worth.kinds).astype(np.float64)
    return Prices(_of_kinds(worth, by_kind, before.kinds), _of_sets(worth, copies.sum(1), float(by_kind.sum())))


def _of_kinds(worth: Worth, by_kind: Floats, before: Floats) -> Floats:
    allowed, demand = worth.demand
    now = before if len(before) == worth.kinds else np.zeros(worth.kinds)
    if not len(demand):
        return now
    asked = demand * by_kind.sum() * _HORIZON
    reach = allowed * (by_kind + 0.01)
    for _ in range(_STEPS):
        drawn = reach * np.exp(-now / _EAGERNESS)
        load = asked / np.maximum(drawn.sum(1), 1e-300) @ drawn
        now = np.clip(now + _STEP * (load - by_kind) / (by_kind + _SLACK_GPUS), 0.0, 1.0)
    return now


def _of_sets(worth: Worth, copies: Floats, free_gpus: float) -> Floats:
    asked = worth.sets.part_of_demand * free_gpus
    asked = asked + np.minimum(_SPARE_SETS * worth.sets.gpus, asked)
    scarcity = np.minimum(1.0, (asked / np.maximum(copies * worth.sets.gpus, 1e-9)) ** 2)
    prices: Floats = np.round(scarcity / _GRAIN) * _GRAIN * worth.sets.worth
    return prices
