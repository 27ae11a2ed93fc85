"""Together: the choice of `topology` for many nodes at once, with the same result.

Nodes with the same layout are handled together: for each distance that a set of GPUs can have, the shortest first, the
cheapest set is chosen on the nodes without one yet.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from gpushare.placement.grid import Floats, Ints
from gpushare.placement.topology import GpuTopology

_AT_ONCE = 1 << 18  # array elements


@dataclasses.dataclass(slots=True)
class GpuChoice:
    """The GPUs chosen on nodes [n], all of which have enough GPUs that fit."""

    rows: Ints  # [count, n] ascending on nodes where distance matters
    costs: Floats  # [n] sum of the GPUs' costs
    apart: Floats  # [n] penalty for distance


def choose(gpu_costs: Floats, layouts: Ints, known: Sequence[GpuTopology], count: int) -> GpuChoice:
    """Choose `count` GPUs on each node. gpu_costs: [g, n] cost of each GPU, infinite where it does not fit.

    layouts: [n] indexes into `known`.
    """
    if count == 1:
        rows = gpu_costs.argmin(0)[np.newaxis]
        return GpuChoice(rows, np.take_along_axis(gpu_costs, rows, 0)[0], np.zeros(gpu_costs.shape[1]))
    there: list[int] = np.flatnonzero(np.bincount(layouts, minlength=1)).tolist()
    if all(known[number].is_flat for number in there):
        rows = np.sort(gpu_costs.argsort(0, kind="stable")[:count], 0)
        apart = np.zeros(len(known))
        apart[there] = [known[number].apart(range(count)) for number in there]
        return GpuChoice(rows, _of_rows(gpu_costs, rows), apart[layouts])
    chosen = GpuChoice(
        np.empty((count, gpu_costs.shape[1]), np.int64), np.empty(gpu_costs.shape[1]), np.empty(gpu_costs.shape[1])
    )
    for number in there:
        at = slice(None) if len(there) == 1 else np.flatnonzero(layouts == number)  # a slice copies nothing
        layout, costs = known[number], gpu_costs[:, at]
        if layout.is_flat:
            chosen.rows[:, at] = np.sort(costs.argsort(0, kind="stable")[:count], 0)
        elif layout.is_exact(count):
            chosen.rows[:, at] = _of_all(layout, costs, count)
        else:
            chosen.rows[:, at] = _of_places(layout, costs, count)
        chosen.apart[at] = _apart(layout, chosen.rows[:, at])
    chosen.costs = _of_rows(gpu_costs, chosen.rows)
    return chosen


def _of_all(layout: GpuTopology, gpu_costs: Floats, count: int) -> Ints:
    rows = np.zeros((count, gpu_costs.shape[1]), np.int64)
    open_ = np.arange(gpu_costs.shape[1])
    for sets in _levels(layout, count):
        if not len(open_):
            break
        step = max(1, _AT_ONCE // sets.size)
        decided = np.zeros(len(open_), np.bool_)
        for begin in range(0, len(open_), step):
            some = open_[begin : begin + step]
            these = gpu_costs if len(some) == gpu_costs.shape[1] else gpu_costs[:, some]
            costs = _added(these[column] for column in sets.T)
            best = costs.argmin(0)
            rows[:, some] = sets[best].T
            decided[begin : begin + step] = costs[best, np.arange(len(some))] < np.inf
        open_ = open_[~decided]
    return rows


@functools.lru_cache(maxsize=256)
def _levels(layout: GpuTopology, count: int) -> tuple[Ints, ...]:
    """Return all sets of `count` rows [set, count], grouped by penalty, the smallest first; each group in row order."""
    sets = list(itertools.combinations(range(len(layout.places)), count))
    by_penalty: dict[int, list[tuple[int, ...]]] = {}
    for rows in sets:
        by_penalty.setdefault(layout.penalty(rows), []).append(rows)
    return tuple(np.array(by_penalty[penalty], np.int64) for penalty in sorted(by_penalty))


def _of_places(layout: GpuTopology, gpu_costs: Floats, count: int) -> Ints:
    distances = np.array(layout.distances, np.int64)
    will_not = ~np.isfinite(gpu_costs)
    best_rows = np.zeros((count, gpu_costs.shape[1]), np.int64)
    best_penalty = np.full(gpu_costs.shape[1], np.iinfo(np.int64).max)
    best_costs = np.full(gpu_costs.shape[1], np.inf)
    for place in layout.neighbourhoods():
        outside = np.ones(gpu_costs.shape, np.int64)
        outside[sorted(place)] = 0
        outside[will_not] = 2
        rows = np.sort(np.lexsort((gpu_costs, outside), axis=0)[:count], 0)
        costs = _of_rows(gpu_costs, rows)
        penalty = sum(
            (distances[rows[first], rows[second]] for first, second in _pairs(count)), np.zeros_like(best_penalty)
        )
        better = (penalty < best_penalty) | ((penalty == best_penalty) & (costs < best_costs))
        best_rows[:, better] = rows[:, better]
        best_penalty[better], best_costs[better] = penalty[better], costs[better]
    return best_rows


def _of_rows(gpu_costs: Floats, rows: Ints) -> Floats:
    costs: Floats = np.take_along_axis(gpu_costs, rows, 0)
    return _added(costs)


def _added(costs: Iterable[Floats]) -> Floats:
    """Add in sequence, as `topology.total` does: numpy's pairwise sum may round differently."""
    return functools.reduce(np.add, costs)


def _apart(layout: GpuTopology, rows: Ints) -> Floats:
    of_pair = np.array(layout.pair_costs(len(rows)))
    costs = np.zeros(rows.shape[1])
    for first, second in _pairs(len(rows)):
        costs += of_pair[rows[first], rows[second]]
    return costs / (len(rows) - 1)


def _pairs(count: int) -> Sequence[tuple[int, int]]:
    return list(itertools.combinations(range(count), 2))
