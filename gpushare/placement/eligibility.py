"""Eligibility: the filters as masks over the grid.

The rules are those of `filters`, asked once a kind of GPU, or once a set of holders, instead of once a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from gpushare import ledger
from gpushare.placement import filters
from gpushare.placement.grid import UNKNOWN, Bools, Columns, Grid, Ints, Kind, State
from gpushare.placement.shape import Part, Shape
from gpushare.request import Constraints
from gpushare.share import Share

_OF_KIND = ("model", "compute-capability", "size")


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """What one part of a shape asks, by kind of GPU."""

    gpus: int
    request_percent: int
    memory_bytes: Ints  # [kind]
    memory_percent: Ints  # [kind] rounded up, 101 where there is not so much
    will_do: Bools  # [kind] whether such a GPU would do if it were empty
    verdicts: Mapping[str, Bools]  # rule → [kind] whether it lets such a GPU pass


def needs_of(part: Part, constraints: Constraints, kinds: Sequence[Kind | None]) -> Needs:
    """The needs of a part among these kinds."""
    memory_bytes = np.zeros(len(kinds), np.int64)
    memory_percent = np.zeros(len(kinds), np.int64)
    verdicts = {rule: np.zeros(len(kinds), np.bool_) for rule in _OF_KIND}
    share = Share(part.request_percent, 100, part.memory)
    for number, kind in enumerate(kinds):
        if kind is None:
            continue
        asked = part.memory.on(kind.memory_bytes)
        memory_bytes[number] = min(asked, 2**62)
        memory_percent[number] = min(101, -(-100 * asked // kind.memory_bytes)) if kind.memory_bytes else 0
        question = filters.Question(kind.card(), ledger.NOTHING, share, constraints)
        for rule, verdict in verdicts.items():
            verdict[number] = filters.RULES[rule][0](question) is None
    will_do = np.logical_and.reduce(list(verdicts.values()))
    return Needs(part.gpus, part.request_percent, memory_bytes, memory_percent, will_do, verdicts)


def host_fits(shape: Shape, columns: Columns) -> Bools:
    """[n] whether the node has the CPU and memory, and is there at all."""
    cpu = shape.host.cpu_milli or -UNKNOWN  # who asks for nothing fits on a node that has given too much away
    fits: Bools = (columns.cpu >= cpu) & (columns.host >= (shape.host.memory_bytes or -UNKNOWN))
    return fits


def lasting(needs: Needs, constraints: Constraints, grid: Grid, columns: Columns, slots: Ints) -> Bools:
    """[g, n] all rules but those about free compute and memory; `slots` says which columns these are."""
    mask: Bools = needs.will_do[columns.live]
    if grid.holders.matter(constraints):
        mask &= np.logical_and.reduce(list(grid.holders.judge(constraints).values()))[columns.holders]
    if constraints.uuids or constraints.not_uuids:
        mask &= by_uuid(constraints, grid, columns, slots)
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


def enough(needs: Needs, compute: Ints, memory: Ints, kind: Ints) -> tuple[Bools, Bools]:
    """[g, n] whether the free compute, and the free memory, will do."""
    of_compute = compute >= needs.request_percent if needs.request_percent else np.ones(compute.shape, np.bool_)
    return of_compute, memory >= needs.memory_bytes[kind]


def by_rule(needs: Needs, constraints: Constraints, grid: Grid, columns: Columns, slots: Ints) -> Mapping[str, Bools]:
    """Rule → [g, n] whether it lets the GPU pass, in the order of `filters.RULES`."""
    of_compute, of_memory = enough(needs, columns.compute, columns.memory, columns.kind)
    masks = {
        "mode": columns.state != State.MODE,
        "health": columns.state != State.HEALTH,
        "cordon": columns.state != State.CORDON,
        "uuid": by_uuid(constraints, grid, columns, slots),
        "compute": of_compute,
        "memory": of_memory,
        **{rule: verdict[columns.kind] for rule, verdict in needs.verdicts.items()},
        **{rule: verdict[columns.holders] for rule, verdict in grid.holders.judge(constraints).items()},
    }
    return {rule: masks[rule] for rule in filters.RULES}
