"""Prices: scarce capacity costs more: kinds of GPU that much of the demand needs, and whole sets of GPUs on a node.

Both compare free capacity with what the mix would request if it filled all of it. Kinds: each class of demand spreads
over the kinds that fit it, away from expensive ones; the price of a kind is the lowest at which no more of it is
requested than is free. Sets: the price is the square of (requested ÷ available) sets, where the request is the demand's
part of the free capacity plus a few spare sets, at most twice that part. So plentiful sets cost next to nothing, and
the last ones as much as their GPUs are worth. All prices depend on the current capacity and the mix only, not on
earlier prices, so that every replica and the plugin choose alike.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from gpushare.placement.grid import Floats, Ints
from gpushare.placement.worth import Worth

_HORIZON = 0.95  # assumed demand as a part of free capacity; below 1, so that no kind is expensive if all of them fit
_EAGERNESS = 0.1  # the price difference that diverts demand
_STEPS = 40
_CLOSE = 1e-3  # of a kind's free GPUs: the precision of prices
_DIGITS = 3  # of the prices of kinds: the last bits depend on the processor
_SLACK_GPUS = 1.0  # the same for a kind with almost nothing free
_KIND_GRAIN = 0.02  # free GPUs of a kind are rounded to steps of this part, so that its price seldom changes
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


def prices(worth: Worth, node_kind: Ints, gpus: Floats, copies: Floats) -> Prices:
    """Return the current prices. gpus: [n] free GPUs of each node by worth; copies: [set, n] whole sets."""
    by_kind: Floats = np.bincount(node_kind, gpus, minlength=worth.kinds).astype(np.float64)
    steps = np.round(np.log1p(by_kind) / _KIND_GRAIN)
    return Prices(_of_kinds(worth, tuple(steps.tolist())), _of_sets(worth, copies.sum(1), float(by_kind.sum())))


@functools.lru_cache(maxsize=8)
def _of_kinds(worth: Worth, steps: tuple[float, ...]) -> Floats:
    """Return the minimum of a convex potential, by Newton's method; its slope is what is free less the demand."""
    by_kind = np.expm1(np.array(steps) * _KIND_GRAIN)
    allowed, demand = worth.demand
    now = np.zeros(worth.kinds)
    if len(demand) < 2:
        return now
    asked = demand * by_kind.sum() * _HORIZON
    reach = allowed * (by_kind + 0.01)
    scale = by_kind + _SLACK_GPUS
    for _ in range(_STEPS):
        drawn = reach * np.exp(-now / _EAGERNESS)
        parts = drawn / np.maximum(drawn.sum(1), 1e-300)[:, np.newaxis]
        load = asked @ parts
        slope = by_kind - load
        free = np.flatnonzero(((now > 0) | (slope < 0)) & ((now < 1) | (slope > 0)))
        if not len(free) or (np.abs(slope) / scale)[free].max() < _CLOSE:
            break
        bend = (np.diag(load) - (parts.T * asked) @ parts + _CLOSE * np.diag(scale)) / _EAGERNESS
        step = np.linalg.solve(bend[np.ix_(free, free)], slope[free])
        now[free] = np.clip(now[free] - np.clip(step, -_EAGERNESS, _EAGERNESS), 0.0, 1.0)
    return np.round(now, _DIGITS)


def _of_sets(worth: Worth, copies: Floats, free_gpus: float) -> Floats:
    asked = worth.sets.part_of_demand * free_gpus
    asked = asked + np.minimum(_SPARE_SETS * worth.sets.gpus, asked)
    scarcity = np.minimum(1.0, (asked / np.maximum(copies * worth.sets.gpus, 1e-9)) ** 2)
    prices: Floats = np.round(scarcity / _GRAIN) * _GRAIN * worth.sets.worth
    return prices
