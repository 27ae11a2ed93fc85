"""Eligibility: the filters as masks over the grid.

The rules are those of `filters`, asked once a kind of GPU, or once a set of holders, instead of once a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from gpushare import ledger
from gpushare.placement import filters
from gpushare.placement.grid import UNKNOWN, Bools, Columns, GpuModel, GpuState, Grid, Ints
from gpushare.placement.request_key import DemandKey, RequestKey
from gpushare.request import Constraints
from gpushare.share import Memory, Share

_OF_KIND = ("model", "compute-capability")
_NO_SHARE = Share(0, 100, Memory(bytes=0))
# Those that are told from the arrays below. Any other of `filters.RULES` is asked of each GPU.
_OVER_ARRAYS = frozenset(
    {
        *_OF_KIND,
        "mode",
        "uuid",
        "size",
        "health",
        "cordon",
        "exclusion",
        "anti-affinity",
        "affinity",
        "compute",
        "memory",
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """What one part of a shape asks, by kind of GPU."""

    gpus: int
    request_percent: int
    memory_bytes: Ints  # [kind]
    memory_percent: Ints  # [kind] rounded up, 101 where there is not so much
    will_do: Bools  # [kind] whether such a GPU would do if it were empty
    least_bytes: Ints  # [kind] as memory_bytes, and more than there can be free where such a GPU will not do
    most_percent: Ints  # [kind] as memory_percent, and 101 where such a GPU will not do
    uniform_percent: int | None  # of compute and of memory, where that is the same on all kinds that will do
    share: Share
    verdicts: Mapping[str, Bools]  # rule → [kind] whether it lets such a GPU pass


def of_kinds(constraints: Constraints, kinds: Sequence[GpuModel | None]) -> Mapping[str, Bools]:
    """Rule → [kind] whether it lets such a GPU pass; of the rules that look at no share, so that all parts have one."""
    verdicts = {rule: np.zeros(len(kinds), np.bool_) for rule in _OF_KIND}
    for number, kind in enumerate(kinds):
        if kind is not None:
            question = filters.FilterInput(kind.card(), ledger.NOTHING, _NO_SHARE, constraints)
            for rule, verdict in verdicts.items():
                verdict[number] = filters.RULES[rule][0](question) is None
    return verdicts


def needs_of(
    part: DemandKey,
    constraints: Constraints,
    kinds: Sequence[GpuModel | None],
    known: Mapping[str, Bools] | None = None,
) -> Needs:
    """The needs of a part among these kinds; known: what `of_kinds` says of them."""
    sizes = [0 if kind is None else kind.memory_bytes for kind in kinds]
    asked = [0 if kind is None else part.memory.on(kind.memory_bytes) for kind in kinds]
    least = constraints.min_memory_bytes
    memory_bytes = np.array([min(one, 2**62) for one in asked], np.int64)
    memory_percent = np.array(
        [min(101, -(-100 * one // size)) if size else 0 for one, size in zip(asked, sizes, strict=True)], np.int64
    )
    size = np.array(
        [kind is not None and kind.memory_bytes >= max(least, one) for kind, one in zip(kinds, asked, strict=True)]
    )
    verdicts = {**(known or of_kinds(constraints, kinds)), "size": size}
    will_do = np.logical_and.reduce(list(verdicts.values()))
    least_bytes = np.where(will_do, memory_bytes, np.iinfo(np.int64).max)
    uniform = bool((memory_percent[will_do] == part.request_percent).all())
    return Needs(
        gpus=part.gpus,
        request_percent=part.request_percent,
        memory_bytes=memory_bytes,
        memory_percent=memory_percent,
        will_do=will_do,
        least_bytes=least_bytes,
        most_percent=np.where(will_do, memory_percent, 101),
        uniform_percent=part.request_percent if uniform else None,
        share=Share(part.request_percent, 100, part.memory),
        verdicts=verdicts,
    )


def host_fits(shape: RequestKey, columns: Columns) -> Bools:
    """[n] whether the node has the CPU and memory, takes one more pod, and is there at all."""
    cpu = shape.host.cpu_milli or -UNKNOWN  # who asks for nothing fits on a node that has given too much away
    fits: Bools = (columns.cpu >= cpu) & (columns.host >= (shape.host.memory_bytes or -UNKNOWN)) & (columns.pods >= 1)
    return fits


def will_do(needs: Needs, constraints: Constraints, grid: Grid, columns: Columns, slots: Ints) -> Bools:
    """[g, n] whether the GPU will do, by all rules; `slots`, in ascending order, says which columns these are."""
    mask: Bools = columns.memory >= needs.least_bytes[columns.live]
    mask &= columns.compute >= needs.request_percent  # also of 0: nothing goes on what is over-committed
    if grid.holders.matter(constraints):
        mask &= np.logical_and.reduce(list(grid.holders.judge(constraints).values()))[columns.holders]
    if constraints.uuids or constraints.not_uuids:
        mask &= by_uuid(constraints, grid, columns, slots)
    for verdict in _of_each(needs, constraints, grid, columns, slots).values():
        mask &= verdict
    return mask


def by_uuid(constraints: Constraints, grid: Grid, columns: Columns, slots: Ints) -> Bools:
    """[g, n] whether the UUID is asked for and not refused; `slots` in ascending order."""
    mask = np.full(columns.kind.shape, not constraints.uuids)
    for uuids, verdict in ((constraints.uuids, True), (constraints.not_uuids, False)):
        for slot, row in (place for uuid in uuids for place in grid.places(uuid)):
            column = int(np.searchsorted(slots, slot))
            if column < len(slots) and slots[column] == slot:
                mask[row, column] = verdict
    return mask


def _of_each(needs: Needs, constraints: Constraints, grid: Grid, columns: Columns, slots: Ints) -> Mapping[str, Bools]:
    """Rule → [g, n] whether it lets the GPU pass, of the rules that are told from no array."""
    found = {rule: np.ones(columns.kind.shape, np.bool_) for rule in filters.RULES if rule not in _OVER_ARRAYS}
    for rule, verdict in found.items():
        judge = filters.RULES[rule][0]
        for column, slot in enumerate(slots.tolist()):
            for row, card in enumerate(grid.cards(slot)):
                question = filters.FilterInput(card, ledger.NOTHING, needs.share, constraints)
                verdict[row, column] = judge(question) is None
    return found


def by_rule(needs: Needs, constraints: Constraints, grid: Grid, columns: Columns, slots: Ints) -> Mapping[str, Bools]:
    """Rule → [g, n] whether it lets the GPU pass, in the order of `filters.RULES`; without those that let all pass."""
    masks = {
        "mode": columns.state != GpuState.MODE,
        "health": columns.state != GpuState.HEALTH,
        "cordon": columns.state != GpuState.CORDON,
        "memory": columns.memory >= needs.memory_bytes[columns.kind],
    }
    masks["compute"] = columns.compute >= needs.request_percent
    if constraints.uuids or constraints.not_uuids:
        masks["uuid"] = by_uuid(constraints, grid, columns, slots)
    masks |= _of_each(needs, constraints, grid, columns, slots)
    for rule, verdict in needs.verdicts.items():
        if not verdict[1:].all():
            masks[rule] = verdict[columns.kind]
    if grid.holders.matter(constraints):
        for rule, verdict in grid.holders.judge(constraints).items():
            masks[rule] = verdict[columns.holders]
    return {rule: masks[rule] for rule in filters.RULES if rule in masks}
