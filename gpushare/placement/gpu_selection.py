"""Selection: the GPUs that a pod would get on each of many nodes at once; greedy, like `node_by_node`.

A pod with one part gets the GPUs that lose the least worth (or, by `pack` and `spread`, the fullest or emptiest). A pod
with several parts is fitted by the costs of its policy, as in `node_by_node`: both find the same pods to fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from gpushare import allocation, policies
from gpushare.allocation import ALL_STEPS, Isolation, Steps
from gpushare.placement import eligibility, together
from gpushare.placement.eligibility import Needs
from gpushare.placement.gpu_label_sets import NOBODY
from gpushare.placement.grid import ABSENT, POINTS, Columns, Floats, Grid, Ints
from gpushare.placement.node_by_node import IN_TURN
from gpushare.placement.request_key import RequestKey
from gpushare.placement.worth import Worth

_Value = TypeVar("_Value", bound=np.generic)

TIGHTER: Final = 1e-7  # breaks ties for the fuller GPU
CUT: Final = 1.0  # the first MIG device on a GPU takes the whole GPU from shares of other kinds
LINKED: Final = 1e-4  # breaks ties for the GPU with the fewest unused linked neighbours


@dataclasses.dataclass(frozen=True, slots=True)
class PlacedPart:
    """The GPUs that a part of a pod has taken: `count` [g, n] is 1 for each."""

    part: Needs
    count: Ints

    @property
    def steps(self) -> Steps:
        """The steps in which the part is in use."""
        return self.part.steps


@dataclasses.dataclass(slots=True)
class Selected:
    """The nodes [n] where the pod fits: their slots, and what is left there."""

    slots: Ints
    nodes: Columns  # these nodes; what GPUs in one state share counts only without `states`
    cost: Floats  # [n] sum of the GPUs' costs by the policy, and the penalty for distance
    apart: Floats  # [n] the penalty alone
    states: Columns | None = None  # a GPU in each state of the nodes' GPUs, after the pod
    before: Columns | None = None  # capacity before the pod, if its parts are used one after another
    taken: list[PlacedPart] = dataclasses.field(default_factory=list)

    def at(self, some: Ints) -> Selected:
        """Return a copy for some of the nodes."""
        return Selected(self.slots[some], self.nodes.at(some), self.cost[some], self.apart[some], self.states)

    def keep(self, kept: Ints) -> None:
        """Drop all other nodes."""
        self.slots = self.slots[kept]
        self.nodes = self.nodes.at(kept) if self.states is None else self.nodes.hosts_at(kept)
        self.cost, self.apart = self.cost[kept], self.apart[kept]
        if self.before is not None:
            self.before = self.before.at(kept)
            self.taken = [PlacedPart(taken.part, taken.count[:, kept]) for taken in self.taken]

    @property
    def left(self) -> Columns:
        """Free capacity of these nodes after the pod."""
        return self.nodes if self.states is None else self.nodes.in_states(self.states)

    def of_left(self, value: Callable[[Columns], npt.NDArray[_Value]]) -> npt.NDArray[_Value]:
        """Return […, g, n] a value that a GPU has because of its own free capacity."""
        return value(self.nodes) if self.states is None else value(self.states)[..., 0, :].take(self.nodes.state, -1)

    def meanwhile(self, steps: Steps) -> Columns:
        """Return what is left during these steps of a pod whose parts are used one after another."""
        if self.before is None:
            return self.nodes
        kind = self.before.kind
        compute, memory, memory_percent = np.zeros((3, *kind.shape), np.int64)
        for at_once in allocation.moments(self.taken, steps):
            compute = np.maximum(compute, sum(of.part.request_percent * of.count for of in at_once))
            memory = np.maximum(memory, sum(of.part.memory_bytes[kind] * of.count for of in at_once))
            memory_percent = np.maximum(memory_percent, sum(of.part.memory_percent[kind] * of.count for of in at_once))
        left = dataclasses.replace(
            self.before,
            compute=self.before.compute - compute,
            memory=self.before.memory - memory,
            compute_percent=np.maximum(self.before.compute_percent - compute, 0),
            memory_percent=np.maximum(self.before.memory_percent - memory_percent, 0),
        )
        left.least_percent = np.minimum(left.compute_percent, left.memory_percent)
        left.memory_point = left.kind * POINTS + left.memory_percent
        return left


def select(
    shape: RequestKey,
    needs: Sequence[Needs],
    worth: Worth,
    grid: Grid,
    slots: Ints | None,
    *,
    missed: list[Selected] | None = None,
) -> Selected:
    """Return the selection on these slots, in ascending order; None: on all.

    missed: gets, for each part, the nodes that have no room for it, after the parts before it.
    """
    selected = begin(shape, grid, slots)
    if any(part.steps != needs[0].steps for part in needs):
        selected.nodes = selected.before = selected.left
        selected.states = None
    for part in needs:
        without = add(selected, part, shape, worth, grid, alone=len(needs) == 1, return_missed=missed is not None)
        if missed is not None and without is not None:
            missed.append(without)
    return selected


def add(
    selected: Selected,
    part: Needs,
    shape: RequestKey,
    worth: Worth,
    grid: Grid,
    *,
    alone: bool,
    return_missed: bool = False,
) -> Selected | None:
    """Place one more part and keep only the nodes with room for it; return_missed: return the other nodes."""
    nodes, slots, states = selected.nodes, selected.slots, selected.states
    meanwhile = selected.meanwhile(part.steps)
    costs = costs_of_gpus(nodes, slots, part, shape, worth, grid, states=states, alone=alone, meanwhile=meanwhile)
    if in_turn := [taken.count for taken in selected.taken if not taken.steps.meets(part.steps)]:
        costs -= IN_TURN * np.maximum.reduce(in_turn)
    fits = np.isfinite(costs).sum(0) >= part.gpus
    missed = dataclasses.replace(selected, nodes=meanwhile).at(np.flatnonzero(~fits)) if return_missed else None
    if not fits.all():
        costs = costs[:, fits]
        selected.keep(np.flatnonzero(fits))
    if len(selected.slots):
        chosen = together.choose(costs, selected.nodes.layout, grid.layouts, part.gpus)
        _take(selected, part, chosen.rows)
        selected.cost += chosen.costs + chosen.apart
        selected.apart += chosen.apart
    return missed


def costs_of_gpus(
    columns: Columns,
    slots: Ints,
    part: Needs,
    shape: RequestKey,
    worth: Worth,
    grid: Grid,
    *,
    states: Columns | None,
    alone: bool,
    gpus: Floats | None = None,
    meanwhile: Columns | None = None,
) -> Floats:
    """Return [g, n] the cost of each GPU, infinite where it does not fit.

    states: a GPU in each state, if known: few GPUs differ, so the cost is computed for each state. alone: the pod has
    no other part. gpus: [g, n] the worth of each GPU, if known. meanwhile: what is left while the part is in use, if
    that is more.
    """
    by_worth = alone and shape.policy == policies.DEFAULT
    if states is not None and is_like_its_state(shape, alone=alone):
        none = np.zeros(0, np.int64)
        costs: Floats = _costs(states, states, none, part, shape, worth, grid, by_worth=by_worth)[0].take(columns.state)
    else:
        columns = columns if states is None else columns.in_states(states)
        meanwhile = columns if states is not None or meanwhile is None else meanwhile
        costs = _costs(columns, meanwhile, slots, part, shape, worth, grid, by_worth=by_worth, gpus=gpus)
    if by_worth and grid.most_linked > 1:
        costs += LINKED * columns.unused_linked
    return costs


def is_like_its_state(shape: RequestKey, *, alone: bool) -> bool:
    """Whether GPUs in one state cost the same, but for unused linked GPUs. alone: the pod has no other part."""
    looks_around = policies.POLICIES[shape.policy].looks_around and not (alone and shape.policy == policies.DEFAULT)
    return not (looks_around or shape.constraints.uuids or shape.constraints.not_uuids)


def _costs(
    columns: Columns,
    meanwhile: Columns,
    slots: Ints,
    part: Needs,
    shape: RequestKey,
    worth: Worth,
    grid: Grid,
    *,
    by_worth: bool,
    gpus: Floats | None = None,
) -> Floats:
    if not (fits := eligibility.will_do(part, shape.constraints, grid, meanwhile, slots)).any():
        return np.full(fits.shape, np.inf)
    if by_worth:
        costs = worth.losses(columns, part, worth.of_gpus(columns) if gpus is None else gpus)
        costs += TIGHTER * columns.least_percent
        if shape.constraints.isolation is Isolation.MIG:
            costs += CUT * (columns.holders == NOBODY)
    else:
        costs = np.array(policies.POLICIES[shape.policy].cost(_option(columns, meanwhile, part, grid)))
    costs[~fits] = np.inf
    return costs


def _option(columns: Columns, meanwhile: Columns, part: Needs, grid: Grid) -> policies.Option:
    """Return every GPU [g, n] as a policy's option; free amounts are arbitrary where the part does not fit."""

    def before() -> policies.Free:
        open_ = columns.live != ABSENT
        return policies.Free(columns.compute_percent / 100, np.maximum(columns.memory, 0) / sizes() * open_)

    def after() -> policies.Free:
        compute = meanwhile.compute - part.request_percent
        # faster than dividing integers
        memory = (meanwhile.memory - part.memory_bytes[columns.kind]).astype(np.float64)
        if meanwhile is not columns:
            compute, memory = np.minimum(compute, columns.compute), np.minimum(memory, columns.memory)
        return policies.Free(compute / 100, np.divide(memory, sizes(), out=memory))

    def sizes() -> Floats:
        there: Floats = np.maximum(grid.sizes(), 1.0)[columns.kind]
        return there

    def around(group: policies.Group) -> Floats:
        mean: Floats = before().mean
        means = np.zeros(mean.shape)
        for number in np.flatnonzero(np.bincount(columns.layout, minlength=1)[: len(grid.layouts)]).tolist():
            at = np.flatnonzero(columns.layout == number)
            for rows, of_all in grid.layouts[number].means(group, list(mean[:, at])):
                means[np.array(rows)[:, np.newaxis], at] = of_all
        return means

    return policies.Option(before, after, around, lambda: grid.holders.are_exclusive()[columns.holders])


def begin(shape: RequestKey, grid: Grid, slots: Ints | None) -> Selected:
    """Return the slots that have CPU and memory for the pod, with no GPU taken."""
    columns = grid.now() if slots is None else grid.columns.at(slots)
    slots = np.arange(grid.width) if slots is None else slots
    selected = Selected(slots, columns, np.zeros(len(slots)), np.zeros(len(slots)))
    selected.nodes, selected.states = columns.by_state(grid.states())
    selected.nodes.cpu = columns.cpu - shape.host.cpu_milli
    selected.nodes.host = columns.host - shape.host.memory_bytes
    kept = np.flatnonzero(eligibility.host_fits(shape, columns))
    if len(kept) < len(slots):
        selected.keep(kept)
    return selected


def _take(selected: Selected, part: Needs, rows: Ints) -> None:
    """Subtract the part from what is left."""
    nodes, at, states = selected.nodes, (rows, np.arange(rows.shape[1])), selected.states
    if states is None:
        taken = np.zeros(nodes.kind.shape, np.int64)
        taken[at] = 1
        selected.taken.append(PlacedPart(part, taken))
        selected.nodes = selected.meanwhile(ALL_STEPS)
        return
    # Only the states of taken GPUs get another one: eight parts would make 256 of each.
    is_taken = np.zeros(states.kind.size, bool)
    is_taken[nodes.state[at]] = True
    selected.states = states.beside(_without(states.of_gpus(np.flatnonzero(is_taken)), part))
    nodes.state[at] = states.kind.size - 1 + np.cumsum(is_taken)[nodes.state[at]]
    if selected.states.kind.size > nodes.state.size:
        selected.nodes, selected.states = selected.left.by_state(selected.states)


def _without(columns: Columns, part: Needs) -> Columns:
    compute = np.maximum(columns.compute_percent - part.request_percent, 0)
    memory = np.maximum(columns.memory_percent - part.memory_percent[columns.kind], 0)
    return dataclasses.replace(
        columns,
        compute=columns.compute - part.request_percent,
        memory=columns.memory - part.memory_bytes[columns.kind],
        compute_percent=compute,
        memory_percent=memory,
        least_percent=np.minimum(compute, memory),
        memory_point=columns.kind * POINTS + memory,
    )
