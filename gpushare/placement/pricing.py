"""Prices: scarce capacity costs more: kinds of GPU that much of the demand needs, and whole sets of GPUs on a node.

Both compare free capacity with what the mix would request if it filled all of it. Kinds: each class of demand spreads
over the kinds that fit it, away from expensive ones; the price of a kind rises if more of it is requested than is free,
and falls otherwise. Sets: the price is the square of (requested ÷ available) sets, where the request is the demand's
part of the free capacity plus a few spare sets, at most twice that part. So plentiful sets cost next to nothing, and
the last ones as much as their GPUs are worth.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gpushare.placement.grid import Floats, Ints
from gpushare.placement.worth import Worth

_HORIZON = 0.95  # assumed demand as a part of free capacity; below 1, so that no kind is expensive if all of them fit
_EAGERNESS = 0.1  # the price difference that diverts demand
_STEP = 0.05
_STEPS = 50
_SLACK_GPUS = 1.0  # a kind with almost nothing free is no scarcer than one with a free GPU
_SPARE_SETS = 3  # spare sets of each class worth keeping, as requests arrive unevenly
_GRAIN = 0.1  # prices of sets are rounded to this


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Prices in GPUs: `kinds` [kind] per GPU, `sets` [set] per GPU of a whole set of the worth's."""

    kinds: Floats
    sets: Floats


def free(worth: Worth) -> Prices:
    """Return zero prices, for when nothing is scarce."""
    return Prices(np.zeros(worth.kinds), np.zeros(len(worth.sets)))


def prices(worth: Worth, node_kind: Ints, gpus: Floats, copies: Floats, *, before: Prices) -> Prices:
    """Return the current prices. gpus: [n] free GPUs of each node by worth; copies: [set, n] whole sets.

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
