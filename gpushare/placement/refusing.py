"""Refusing: build the refusal of `node_by_node` over the grid instead of GPU by GPU.

Counts come from masks; only the nearest miss of each rule is worded, by the filter itself.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpushare import ledger
from gpushare.allocation import Share
from gpushare.placement import eligibility, explanation, filters, gpu_selection
from gpushare.placement.eligibility import Needs
from gpushare.placement.gpu_selection import Selected
from gpushare.placement.grid import ABSENT, Bools, Columns, Floats, Grid, Ints
from gpushare.placement.node_by_node import fits_anywhere
from gpushare.placement.request_key import RequestKey, in_order
from gpushare.placement.view import NodeView
from gpushare.placement.worth import Worth
from gpushare.refusal import Refusal, Rejected
from gpushare.request import Request

_LAST_ROW = 1 << 20  # reasons against a whole node sort after those against its GPUs


@dataclasses.dataclass(slots=True)
class _Reasons:
    """How many GPUs each rule rejected, and the nearest miss of each as (shortfall, rank of the node, row) and
    reason.
    """

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    nearest: list[tuple[tuple[float, int, int], Rejected]] = dataclasses.field(default_factory=list)


def refuse(
    request: Request,
    shape: RequestKey,
    needs: Sequence[Needs],
    worth: Worth,
    grid: Grid,
    views: Mapping[str, NodeView],
    unfit: Callable[[str], str | None],
    is_misfit: Bools,
) -> Refusal:
    """Return the refusal; `rejected` has only the nearest miss of each rule, the nearest of all first.

    is_misfit: [n] whether `unfit` rejects the node, unless it lacks CPU, memory or room for one more pod.
    """
    reasons, missed = _Reasons(), list[Selected]()
    is_fit = eligibility.host_fits(shape, grid.now()) & ~is_misfit
    others = np.flatnonzero(~is_fit & (grid.ranks() < len(grid.slots)))
    shares = [demand.share for demand in in_order(request)]
    fitting, needed = np.zeros(grid.width, np.int64), 0
    for part, share in zip(needs[:1], shares, strict=False):
        every = Selected(np.arange(grid.width), grid.now(), np.zeros(0), np.zeros(0))
        fitting, needed = _rejected_by(part, share, shape, grid, every, is_fit, views, reasons), part.gpus
        slots = np.flatnonzero(is_fit & (fitting >= needed))
        if len(needs) > 1 and len(slots):
            gpu_selection.select(shape, needs, worth, grid, slots, missed=missed)
    for part, share, there in zip(needs[1:], shares[1:], missed[1:], strict=False):
        _rejected_by(part, share, shape, grid, there, is_fit, views, reasons)
    if not reasons.nearest and not len(others):  # `misfits` left out a node that `unfit` rejects
        slots = np.flatnonzero(is_fit)
        others = np.array([slot for slot in slots if unfit(grid.names[slot]) is not None], np.int64)
    if len(others):
        _add_unfit_nodes(others, shape, np.minimum(fitting, needed), needed, grid, unfit, reasons)
    reasons.nearest.sort(key=lambda entry: entry[0])
    rejected = tuple(entry for _, entry in reasons.nearest)
    gpus, max_per_node = sum(grid.gpus_of_kinds), max(grid.node_gpus)
    return explanation.count(request, rejected, reasons.counts, gpus=gpus, nodes=len(views), max_per_node=max_per_node)


def misfits(grid: Grid, unfit: Callable[[str], str | None], bits: Callable[[], int] | None) -> Bools:
    """Return [n] whether a node cannot take the pod. bits: returns those of such nodes in `grid.rows`, if known."""
    if unfit is fits_anywhere:
        return np.zeros(grid.width, np.bool_)
    if bits is None:
        return np.array([name != "" and unfit(name) is not None for name in grid.names], np.bool_)
    rows = grid.rows[: grid.width]
    length = int(rows.max(initial=0)) // 8 + 1
    found = (bits() & (1 << 8 * length) - 1).to_bytes(length, "little")
    return (rows < 0) | (np.unpackbits(np.frombuffer(found, np.uint8), bitorder="little")[rows] > 0)


def _add_unfit_nodes(
    others: Ints,
    shape: RequestKey,
    fitting: Ints,
    needed: int,
    grid: Grid,
    unfit: Callable[[str], str | None],
    reasons: _Reasons,
) -> None:
    """Add how many nodes cannot take the pod, and the reason of the nearest of them only.

    fitting: [n] GPUs that fit the first part, at most the needed ones.
    """
    ranks = grid.ranks()
    reasons.counts[explanation.NODE_RULE] += len(others)
    if any(far[0] < explanation.NODE_SHORTFALL for far, _ in reasons.nearest):
        others = others[[ranks[others].argmin()]]  # a GPU of another node is a nearer miss
    lacks = eligibility.host_lacks(shape, grid.now())[others]
    slot = int(others[np.lexsort((ranks[others], lacks, -fitting[others]))[0]])
    name = grid.names[slot]
    reason = unfit(name) or explanation.host(shape.host, **dataclasses.asdict(grid.room(name)))
    entry = explanation.unfit(name, reason, fitting=int(fitting[slot]), needed=needed)
    reasons.nearest.append(((entry.shortfall, int(ranks[slot]), _LAST_ROW), entry))


def _rejected_by(
    part: Needs,
    share: Share,
    shape: RequestKey,
    grid: Grid,
    so_far: Selected,
    is_fit: Bools,
    views: Mapping[str, NodeView],
    reasons: _Reasons,
) -> Ints:
    """Add why this part does not fit on these nodes, as far as they can take the pod; return [n] the GPUs that fit.

    so_far: nodes with room for the parts before it.
    """
    left, ranks = so_far.left, grid.ranks()[so_far.slots]
    options = eligibility.will_do(part, shape.constraints, grid, left, so_far.slots)
    count: Ints = options.sum(0)
    failed = is_fit[so_far.slots] & (count < part.gpus)
    gpus = (left.kind != ABSENT) & ~options & failed
    for rule, ruled_out, short in eligibility.ruled_out(part, shape.constraints, grid, left, so_far.slots, gpus):
        reasons.counts[rule] += int(np.count_nonzero(ruled_out))
        row, column = _nearest(ruled_out, ranks, short)
        view = views[grid.names[so_far.slots[column]]]
        reasons.nearest.append(_reason(view, grid, so_far.slots, left, row, column, share, shape, int(ranks[column])))
    few = np.flatnonzero(failed & (count > 0))
    if len(few):
        reasons.counts[explanation.COUNT_RULE] += len(few)
        column = few[np.lexsort((ranks[few], -count[few]))[0]]
        name = grid.names[so_far.slots[column]]
        entry = explanation.too_few(name, fitting=int(count[column]), needed=part.gpus)
        reasons.nearest.append(((entry.shortfall, int(ranks[column]), _LAST_ROW), entry))
    return count


def _nearest(ruled_out: Bools, ranks: Ints, short: Floats) -> tuple[int, int]:
    """Return row and column of the smallest miss; ties go to the first node by name, then its first GPU."""
    far = np.where(ruled_out, short, np.inf)
    ruled_out = far == far.min()
    columns = np.flatnonzero(ruled_out.any(0))
    column = int(columns[ranks[columns].argmin()])
    return int(ruled_out[:, column].argmax()), column


def _reason(
    view: NodeView,
    grid: Grid,
    slots: Ints,
    left: Columns,
    row: int,
    column: int,
    share: Share,
    shape: RequestKey,
    rank: int,
) -> tuple[tuple[float, int, int], Rejected]:
    gpu = grid.gpus(int(slots[column]))[row]
    taken = ledger.GpuUse(
        100 - int(left.compute[row, column]),
        gpu.memory_bytes - int(left.memory[row, column]),
        view.used[gpu.uuid].holders,
        view.used[gpu.uuid].lent_bytes,
    )
    verdict = filters.reject(filters.FilterInput(gpu, taken, share, shape.constraints))
    if verdict is None:
        raise AssertionError(f"{view.node.name}/{gpu.index} was ruled out, and no filter says why")
    rule, detail, shortfall = verdict
    return (shortfall, rank, row), Rejected(view.node.name, gpu.index, rule, detail, shortfall)
