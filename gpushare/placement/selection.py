"""Selection: which GPUs of each node a pod would take there, for many nodes at once: greedily, as the reference does.

A pod with one part takes the GPUs that lose the least worth (or, by `pack` and `spread`, those that are fullest or
emptiest). One with several parts is fitted together by the costs of the reference, so that what fits there fits here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from gpushare.placement import costs, eligibility
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import Bools, Columns, Floats, Grid, Ints
from gpushare.placement.shape import Shape
from gpushare.placement.worth import Worth

_TIGHTER = 1e-7  # of equal losses, that of the fuller GPU


@dataclasses.dataclass(slots=True)
class Selected:
    """For the nodes where the pod fits: their slots, what is left of them then, and which GPUs it takes."""

    slots: Ints  # [n]
    left: Columns
    chosen: list[Bools]  # [g, n] for each part
    cost: Floats  # [n] by the policy's costs of GPUs, added up
    loss: Floats  # [n] worth that the chosen GPUs lose

    def keep(self, kept: Ints) -> None:
        """Only these of the nodes."""
        self.slots, self.left = self.slots[kept], self.left.at(kept)
        self.chosen = [one[:, kept] for one in self.chosen]
        self.cost, self.loss = self.cost[kept], self.loss[kept]


def select(
    shape: Shape,
    needs: Sequence[Needs],
    worth: Worth,
    grid: Grid,
    slots: Ints | None = None,
    *,
    parts: int | None = None,
) -> Selected:
    """The selection on these slots, in ascending order, None: on all; of so many of the parts, None: of all."""
    found = Selected(
        np.arange(grid.width) if slots is None else slots,
        grid.now() if slots is None else grid.columns.at(slots),
        chosen=[],
        cost=np.zeros(grid.width if slots is None else len(slots)),
        loss=np.zeros(grid.width if slots is None else len(slots)),
    )
    fits = eligibility.host_fits(shape, found.left)
    if not fits.all():
        found.keep(np.flatnonzero(fits))
    for part in needs[:parts]:
        _take(found, part, shape, worth, grid, alone=len(needs) == 1)
    return found


def _take(found: Selected, part: Needs, shape: Shape, worth: Worth, grid: Grid, *, alone: bool) -> None:
    """One part more; nodes with too few GPUs for it are dropped."""
    mask = eligibility.lasting(part, shape.constraints, grid, found.left, found.slots)
    of_compute, of_memory = eligibility.enough(part, found.left.compute, found.left.memory, found.left.kind)
    mask &= of_compute
    mask &= of_memory
    fits = np.add.reduce(mask, axis=0, dtype=np.int16) >= part.gpus
    if not fits.all():
        kept = np.flatnonzero(fits)
        found.keep(kept)
        mask = mask[:, kept]
    left = found.left
    compute_percent = np.maximum(left.compute_percent - part.request_percent, 0)
    memory_percent = np.maximum(left.memory_percent - part.memory_percent[left.kind], 0)
    by_worth = shape.policy == "fragmentation"
    if by_worth:
        losses = worth.of_cards(left.compute_percent, left.memory_percent, left.kind)
        losses -= worth.of_cards(compute_percent, memory_percent, left.kind)
    if by_worth and alone:
        each = losses + _TIGHTER * left.compute_percent
    else:
        each = costs.COSTS[shape.policy](left, part, grid.sizes())
    taken = _cheapest(np.where(mask, each, np.inf), part.gpus)
    found.cost += np.where(taken, each, 0.0).sum(0)
    if by_worth:
        found.loss += np.where(taken, losses, 0.0).sum(0)
    found.chosen.append(taken)
    found.left = dataclasses.replace(
        left,
        compute=left.compute - taken * part.request_percent,
        memory=left.memory - np.where(taken, part.memory_bytes[left.kind], 0),
        compute_percent=np.where(taken, compute_percent, left.compute_percent),
        memory_percent=np.where(taken, memory_percent, left.memory_percent),
    )


def _cheapest(each: Floats, count: int) -> Bools:
    """[g, n] the `count` cheapest of each column; of equals, the first rows."""
    taken = np.zeros(each.shape, np.bool_)
    columns = np.arange(each.shape[1])
    for turn in range(count):
        rows = each.argmin(0)
        taken[rows, columns] = True
        if turn + 1 < count:
            each[rows, columns] = np.inf
    return taken
