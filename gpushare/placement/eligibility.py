"""Eligibility: the filters over the grid, each evaluated once for all GPUs that look equal to it.

A rule about the GPU is evaluated once per distinct set of facts, and for each GPU that the pod names. A rule about
labels is evaluated once per set of labels; one about an amount is one comparison for all GPUs. No rule is special-cased
by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpushare import ledger
from gpushare.allocation import Allocation, GivenShare, Isolation, PodRef, Share, Steps
from gpushare.gpunode import Gpu
from gpushare.placement import filters
from gpushare.placement.filters import Amount, FilterInput, GpuFilter, Sees
from gpushare.placement.gpu_label_sets import PASSES
from gpushare.placement.grid import ABSENT, UNKNOWN, Bools, Columns, Floats, Grid, Ints
from gpushare.placement.request_key import DemandKey, RequestKey
from gpushare.request import Constraints


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """The needs of one part of a request, by kind of GPU."""

    gpus: int
    request_percent: int
    memory_bytes: Ints  # [kind]
    memory_percent: Ints  # [kind] rounded up, 101 if the GPU is too small
    will_do: Bools  # [kind] whether an empty GPU of the kind fits
    most_percent: Ints  # [kind] memory_percent, or 101 if the kind does not fit
    uniform_percent: int | None  # of compute and of memory, if equal on all kinds that fit
    share: Share
    passes: Bools  # [facts] whether all rules about the GPU pass
    shortfalls: Mapping[str, Floats]  # rule about the GPU → [facts] shortfall or PASSES
    steps: Steps


def needs_of(
    part: DemandKey, constraints: Constraints, kinds: Sequence[Gpu | None], facts: Sequence[Gpu | None] = ()
) -> Needs:
    """Return the needs of a part for these kinds and facts."""
    share = Share(part.request_percent, 100, part.memory, part.memory_limit)
    sizes = [0 if kind is None else kind.memory_bytes for kind in kinds]
    asked = [0 if kind is None else part.memory.on(kind.memory_bytes) for kind in kinds]
    memory_percent = np.array(
        [min(101, -(-100 * wanted // size)) if size else 0 for wanted, size in zip(asked, sizes, strict=True)], np.int64
    )
    will_do = np.array(
        [kind is not None and _lets_pass(FilterInput(kind, ledger.NOTHING, share, constraints)) for kind in kinds]
    )
    shortfalls = _shortfalls(facts, share, constraints)
    uniform = bool((memory_percent[will_do] == part.request_percent).all())
    return Needs(
        gpus=part.gpus,
        request_percent=part.request_percent,
        memory_bytes=np.array([min(wanted, 2**62) for wanted in asked], np.int64),
        memory_percent=memory_percent,
        will_do=will_do,
        most_percent=np.where(will_do, memory_percent, 101),
        uniform_percent=part.request_percent if uniform else None,
        share=share,
        passes=np.logical_and.reduce([short == PASSES for short in shortfalls.values()]),
        shortfalls=shortfalls,
        steps=part.steps,
    )


def _shortfalls(gpus: Sequence[Gpu | None], share: Share, constraints: Constraints) -> Mapping[str, Floats]:
    """Return rule about the GPU → shortfall of each of these; infinite for None."""
    empty = [None if gpu is None else FilterInput(gpu, ledger.NOTHING, share, constraints) for gpu in gpus]
    rules = {name: rule for name, rule in filters.RULES.items() if rule.sees is Sees.GPU}
    shortfalls = np.array(
        [[np.inf if ask is None else _shortfall(rule, ask) for ask in empty] for rule in rules.values()]
    )
    return dict(zip(rules, shortfalls, strict=True))


def _shortfall(rule: GpuFilter, ask: FilterInput) -> float:
    verdict = rule.check(ask)
    return PASSES if verdict is None else verdict[1]


def _lets_pass(ask: FilterInput) -> bool:
    return all(rule.check(ask) is None for rule in filters.RULES.values() if rule.sees is Sees.GPU)


def host_fits(shape: RequestKey, columns: Columns) -> Bools:
    """[n] Whether the node exists and has CPU and memory for the pod and room for one more."""
    cpu = shape.host.cpu_milli or -UNKNOWN  # a request of 0 fits on an overcommitted node
    fits: Bools = (columns.cpu >= cpu) & (columns.host >= (shape.host.memory_bytes or -UNKNOWN)) & (columns.pods >= 1)
    return fits


def host_lacks(shape: RequestKey, columns: Columns) -> Floats:
    """Return [n] the larger shortage of CPU and memory, as a part of the request."""
    asked = np.array([[shape.host.cpu_milli], [shape.host.memory_bytes]])
    lacks: Floats = (np.maximum(asked - [columns.cpu, columns.host], 0) / np.maximum(asked, 1)).max(0)
    return lacks


def will_do(needs: Needs, constraints: Constraints, grid: Grid, columns: Columns, slots: Ints) -> Bools:
    """[g, n] Whether the GPU passes all rules; `slots`, in ascending order: the slots of these columns."""
    amounts = _Amounts(needs, grid, columns)
    mask: Bools = columns.kind != ABSENT
    for rule in filters.RULES.values():
        if rule.amount is not None and mask.any():
            amount = rule.amount(amounts)
            mask &= amount.free >= amount.asked  # also for 0: an overcommitted GPU takes no pod
    if not mask.any():
        return mask
    passes = needs.passes[columns.facts]
    for at, ask in _named(needs, constraints, grid, slots):
        passes[at] = _lets_pass(ask)
    mask &= passes
    for short in grid.holders.shortfalls(constraints).values():
        mask &= (short == PASSES)[columns.holders]
    for short in _of_instances(needs, constraints, grid, columns).values():
        mask &= short == PASSES
    return mask


def ruled_out(
    needs: Needs, constraints: Constraints, grid: Grid, columns: Columns, slots: Ints, gpus: Bools
) -> Iterator[tuple[str, Bools, Floats]]:
    """Yield rule, [g, n] whether it is the first to reject the GPU, and [g, n] shortfalls, arbitrary for other GPUs.

    Rules come in the order of the table, but for those that reject no GPU first. `gpus` [g, n] loses the rejected ones.
    """
    amounts, by_labels = _Amounts(needs, grid, columns), grid.holders.shortfalls(constraints)
    by_instances = _of_instances(needs, constraints, grid, columns)
    named = list(_named(needs, constraints, grid, slots))
    for name, rule in filters.RULES.items():
        if not gpus.any():
            return
        if rule.amount is not None:
            amount = rule.amount(amounts)
            fails = amount.free < amount.asked
        elif name in by_labels:
            shortfalls = by_labels[name][columns.holders]
        elif name in by_instances:
            shortfalls = by_instances[name]
        elif rule.sees is Sees.GPU and (named or (needs.shortfalls[name][ABSENT + 1 :] != PASSES).any()):
            shortfalls = needs.shortfalls[name][columns.facts]
            for at, ask in named:
                shortfalls[at] = _shortfall(rule, ask)
        else:
            continue
        rejected = gpus & (fails if rule.amount is not None else shortfalls != PASSES)
        if rejected.any():
            gpus ^= rejected
            yield name, rejected, amount.shortfall if rule.amount is not None else shortfalls


@dataclasses.dataclass(frozen=True, slots=True)
class _Amounts:
    """The amounts of `FilterInput` of every GPU, as arrays [g, n] that are computed on demand."""

    needs: Needs
    grid: Grid
    columns: Columns

    @property
    def compute(self) -> Amount:
        return Amount(self.needs.request_percent, self.columns.compute, lambda: 100)

    @property
    def memory(self) -> Amount:
        kinds = self.columns.kind
        return Amount(
            self.needs.memory_bytes[kinds], self.columns.memory, lambda: np.maximum(self.grid.sizes()[kinds], 1)
        )


def _of_instances(needs: Needs, constraints: Constraints, grid: Grid, columns: Columns) -> dict[str, Floats]:
    """Return rule about MIG devices → [g, n] shortfall or PASSES, from one check per GPU's facts and set of devices."""
    if constraints.isolation is not Isolation.MIG:
        return {}
    pairs, at = np.unique(columns.facts * grid.holders.size + columns.holders, return_inverse=True)
    asks = []
    for facts, holders in (divmod(int(pair), grid.holders.size) for pair in pairs):
        gpu, devices = grid.facts[facts], grid.holders.instances(holders)
        shares = tuple(GivenShare((), ("",), 0, 100, 0, mig=device) for device in devices)
        used = ledger.GpuUse(holders=(Allocation("", PodRef(""), shares),))
        asks.append(None if gpu is None else FilterInput(gpu, used, needs.share, constraints))
    return {
        name: np.array([np.inf if ask is None else _shortfall(rule, ask) for ask in asks])[at].reshape(
            columns.kind.shape
        )
        for name, rule in filters.RULES.items()
        if rule.sees is Sees.INSTANCES
    }


def _named(
    needs: Needs, constraints: Constraints, grid: Grid, slots: Ints
) -> Iterator[tuple[tuple[int, int], FilterInput]]:
    """Yield the position of each GPU that the pod names, with its filter input when empty; `slots` in ascending
    order.
    """
    for uuid in (*constraints.uuids, *constraints.not_uuids):
        slot, row = grid.places.get(uuid, (-1, 0))
        column = int(np.searchsorted(slots, slot))
        if column < len(slots) and slots[column] == slot:
            yield (row, column), FilterInput(grid.gpus(slot)[row], ledger.NOTHING, needs.share, constraints)
