"""Selection: which GPUs of a node a pod would take there, for many nodes at once: greedily, as the reference does.

A pod with one part takes the GPUs that lose the least worth (or, by `pack` and `spread`, those that are fullest or
emptiest). One with several parts is fitted together by the costs of the reference, so that what fits there fits here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from gpushare.placement import costs, eligibility, together
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import POINTS, Columns, Floats, Grid, Ints
from gpushare.placement.shape import Shape
from gpushare.placement.worth import Worth

TIGHTER: Final = 1e-7  # of equal losses, that of the fuller GPU


@dataclasses.dataclass(slots=True)
class Selected:
    """For the nodes [n] where the pod fits: their slots, and what it takes there."""

    slots: Ints
    rows: list[Ints]  # for each part the rows of its GPUs [gpus, n]
    left: Columns  # what is left of these nodes then
    cost: Floats  # [n] by the policy's costs of GPUs, added up, and what it costs that they are apart
    apart: Floats  # [n] the latter by itself

    def keep(self, kept: Ints) -> None:
        """Only these of the nodes."""
        self.slots, self.left = self.slots[kept], self.left.at(kept)
        self.cost, self.apart = self.cost[kept], self.apart[kept]
        self.rows = [rows[:, kept] for rows in self.rows]


def select(shape: Shape, needs: Sequence[Needs], worth: Worth, grid: Grid, slots: Ints | None) -> Selected:
    """The selection on these slots, in ascending order, None: on all."""
    found = begin(shape, grid, slots)
    for part in needs:
        add(found, part, shape, worth, grid, alone=len(needs) == 1)
    return found


def add(found: Selected, part: Needs, shape: Shape, worth: Worth, grid: Grid, *, alone: bool) -> None:
    """Take one more part on the nodes that have room for it, and keep only these. alone: it is the pod's only part."""
    each = costs_of_gpus(found.left, found.slots, part, shape, worth, grid, alone=alone)
    fits = np.isfinite(each).sum(0) >= part.gpus
    if not fits.all():
        each = each[:, fits]
        found.keep(np.flatnonzero(fits))
    taken = together.take(each, found.left.layout, grid.layouts, part.gpus)
    _take(found.left, part, taken.rows)
    found.rows.append(taken.rows)
    found.cost += taken.costs + taken.apart
    found.apart += taken.apart


def costs_of_gpus(
    columns: Columns,
    slots: Ints,
    part: Needs,
    shape: Shape,
    worth: Worth,
    grid: Grid,
    *,
    alone: bool,
    cards: Floats | None = None,
) -> Floats:
    """[g, n] what each GPU costs, infinite where it will not do.

    alone: the part is all that the pod asks for. cards: [g, n] the worth of each GPU, where that is known.
    """
    if alone and shape.policy == "fragmentation":
        each = worth.losses(columns, part, worth.of_cards(columns) if cards is None else cards)
        each += TIGHTER * columns.least_percent
    else:
        each = costs.COSTS[shape.policy](columns, part, grid.sizes())
    each[~eligibility.will_do(part, shape.constraints, grid, columns, slots)] = np.inf
    return each


def begin(shape: Shape, grid: Grid, slots: Ints | None, *, changing: bool = True) -> Selected:
    """Nothing taken yet, on those of the slots that have room for the pod itself. changing: parts will be added."""
    columns = grid.now() if slots is None else grid.columns.at(slots)
    slots = np.arange(grid.width) if slots is None else slots
    kept = np.flatnonzero(eligibility.host_fits(shape, columns))
    if not changing and len(kept) == len(slots):
        return Selected(slots, [], columns, np.zeros(len(slots)), np.zeros(len(slots)))
    slots, left = slots[kept], columns.at(kept)
    left.cpu -= shape.host.cpu_milli
    left.host -= shape.host.memory_bytes
    return Selected(slots, [], left, np.zeros(len(slots)), np.zeros(len(slots)))


def _take(left: Columns, part: Needs, rows: Ints) -> None:
    """Take the part from copies of columns."""
    at = (rows, np.arange(rows.shape[1]))
    kind = left.kind[at]
    left.compute[at] -= part.request_percent
    left.memory[at] -= part.memory_bytes[kind]
    left.compute_percent[at] = np.maximum(left.compute_percent[at] - part.request_percent, 0)
    left.memory_percent[at] = np.maximum(left.memory_percent[at] - part.memory_percent[kind], 0)
    left.least_percent[at] = np.minimum(left.compute_percent[at], left.memory_percent[at])
    left.memory_point[at] = kind * POINTS + left.memory_percent[at]
