"""Worth: what the free capacity of a node is worth to the mix, in GPUs; a pod goes where it falls least.

* A free part of a GPU is worth what the mix could fill of it (`cutting_stock`), in each of compute and memory, and as
  much as the scarcer of the two.
* A node's GPUs are worth only what its free CPU and memory can feed: of the demand that the node's kind of GPU could
  serve, the lightest first, so much as the free CPU per free GPU is enough for. A curve for each kind.
* A set of GPUs on one node that a request for several of them could take adds its price (`prices`) while it is whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from gpushare.mix import Asked, Mix
from gpushare.placement import cutting_stock, eligibility
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import Bools, Columns, Floats, Ints, Kind
from gpushare.placement.shape import Part

_POINTS = 1024  # of a curve
_MOST_SETS = 16  # classes of several GPUs that are priced: the commonest
_LEAST_FREE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class GpuSet:
    """A class of request for several GPUs of one node."""

    needs: Needs
    cpu_milli: float
    memory_bytes: float
    part_of_demand: float  # of all GPUs asked for, 0 to 1

    def copies(self, columns: Columns) -> Floats:
        """[n] how many of it the node could take now."""
        kind = columns.kind
        whole = (columns.compute_percent >= self.needs.request_percent) & self.needs.will_do[columns.live]
        whole &= columns.memory_percent >= self.needs.memory_percent[kind]
        sets = np.add.reduce(whole, axis=0, dtype=np.int64) // self.needs.gpus
        fed = np.minimum(columns.cpu // self.cpu_milli, columns.host // self.memory_bytes)
        copies: Floats = np.maximum(np.minimum(sets, fed), 0.0)
        return copies


class Curve:
    """[kind] free CPU (or memory) per free GPU → the part of the GPU's demand that it is enough for, 0 to 1."""

    def __init__(self, points: Sequence[tuple[Floats, Floats]]) -> None:
        """For each kind: the demand's need per GPU, ascending, and what part of the demand each is."""
        values = np.ones((len(points), _POINTS + 2))
        self._scale = np.zeros(len(points))
        for kind, (need, part) in enumerate(points):
            needed, served = np.cumsum(need * part), np.cumsum(part)
            if not len(need) or needed[-1] <= 0:
                continue
            self._scale[kind] = _POINTS / needed[-1]
            at = np.linspace(0, needed[-1], _POINTS + 1)
            values[kind, :-1] = np.interp(at, np.append(0.0, needed), np.append(0.0, served))
        self._values = values.ravel()

    def usable(self, free: Floats, gpus: Floats, kind: Ints) -> Floats:
        """[n] for so much free on nodes with so many GPUs free."""
        place = np.minimum(np.maximum(free, 0.0) / np.maximum(gpus, _LEAST_FREE) * self._scale[kind], _POINTS)
        point = place.astype(np.int64)
        base = kind * (_POINTS + 2) + point
        low = self._values[base]
        usable: Floats = low + (self._values[base + 1] - low) * (place - point)
        return usable


class Worth:
    """The tables of one mix over the kinds of GPU there are."""

    def __init__(self, mix: Mix, kinds: Sequence[Kind | None], *, before: Worth | None = None) -> None:
        """`before`: the tables of an earlier mix, to start from."""
        self.kinds = len(kinds)
        self.scarcity: dict[str, dict[int, float]] = {}
        classes = [_Class(asked, weight, kinds) for asked, weight in mix.classes.items()]
        tables = _Tables(before.scarcity if before else {}, self.scarcity)
        self._compute = tables.of("compute", ((one, one.asked.request_percent) for one in classes))
        memory = [
            tables.of(f"memory of {kind}", ((one, int(one.needs.memory_percent[number])) for one in classes))
            for number, kind in enumerate(kinds)
            if kind
        ]
        # As a rule memory is asked for in proportion to compute, and one table says all.
        self._alike = all(table is self._compute for table in memory)
        self._memory = np.concatenate([self._compute, *memory])
        self.demand = _demand(classes)
        self._cpu = Curve([_points(classes, kind, lambda one: one.host.cpu_milli) for kind in range(len(kinds))])
        self._host = Curve([_points(classes, kind, lambda one: one.host.memory_bytes) for kind in range(len(kinds))])
        self.sets = _sets(classes)

    def of_cards(self, compute_percent: Ints, memory_percent: Ints, kind: Ints) -> Floats:
        """[g, n] the worth of so much free of a GPU."""
        if self._alike:
            return self._compute[np.minimum(compute_percent, memory_percent)]
        worth: Floats = np.minimum(self._compute[compute_percent], self._memory[kind * 101 + memory_percent])
        return worth

    def fed(self, gpus: Floats, columns: Columns) -> Floats:
        """[n] what of the worth of a node's GPUs its free CPU and memory can feed."""
        kind = columns.node_kind
        by_cpu = self._cpu.usable(columns.cpu, gpus, kind)
        return gpus * np.minimum(by_cpu, self._host.usable(columns.host, gpus, kind))

    def of_sets(self, columns: Columns, prices: Floats) -> Floats:
        """[n] the price of all sets that are whole; `prices` by set."""
        total = np.zeros(columns.cpu.shape)
        for one, price in zip(self.sets, prices, strict=True):
            if price > 0:
                total += price * one.needs.gpus * one.copies(columns)
        return total


class _Class:
    """A class of the mix among the kinds there are."""

    def __init__(self, asked: Asked, weight: float, kinds: Sequence[Kind | None]) -> None:
        part = Part(asked.gpus, asked.request_percent, asked.memory)
        self.asked = asked
        self.host = asked.host
        self.weight = weight
        self.needs = eligibility.needs_of(part, asked.constraints, kinds)
        sizes = np.array([asked.size_on(kind.memory_bytes) if kind else 0.0 for kind in kinds])
        self.size = np.where(self.needs.will_do, sizes, 0.0)  # [kind] GPUs; 0 where it cannot go
        self.gpus = float(self.size.max())  # GPUs asked for, 0 if it can go nowhere


class _Tables:
    """Worth by free per cent, worked out once where several ask for the same sizes."""

    def __init__(self, before: Mapping[str, dict[int, float]], scarcity: dict[str, dict[int, float]]) -> None:
        self._before = before
        self._scarcity = scarcity
        self._known: dict[tuple[tuple[int, float], ...], Floats] = {}

    def of(self, name: str, sizes: Iterable[tuple[_Class, int]]) -> Floats:
        """The table of these sizes in per cent; `name` finds the duals of an earlier mix."""
        weights: dict[int, float] = {}
        for one, percent in sizes:
            if 1 <= percent <= 100:
                weights[percent] = weights.get(percent, 0.0) + one.weight * one.asked.gpus
        key = tuple(sorted(weights.items()))
        if key not in self._known:
            worth, self._scarcity[name] = cutting_stock.worth(weights, self._before.get(name, {}))
            self._known[key] = np.array(worth)
        return self._known[key]


def _points(classes: Sequence[_Class], kind: int, need: Callable[[_Class], int]) -> tuple[Floats, Floats]:
    there = [one for one in classes if one.size[kind] > 0]
    if not there:
        return np.zeros(0), np.zeros(0)
    size = np.array([one.size[kind] for one in there])
    part = size * np.array([one.weight for one in there])
    per_gpu = np.array([need(one) for one in there]) / size
    order = per_gpu.argsort(kind="stable")
    return per_gpu[order], (part / part.sum())[order]


def _demand(classes: Sequence[_Class]) -> tuple[Bools, Floats]:
    """Each set of kinds that somebody asks for [m, kind], and its part of all GPUs asked for [m]."""
    parts: dict[tuple[bool, ...], float] = {}
    for one in classes:
        if one.gpus:
            key = tuple(bool(will_do) for will_do in one.size > 0)
            parts[key] = parts.get(key, 0.0) + one.weight * one.gpus
    total = sum(parts.values())
    return np.array(list(parts), np.bool_), np.array([part / total for part in parts.values()])


def _sets(classes: Sequence[_Class]) -> list[GpuSet]:
    total = sum(one.weight * one.gpus for one in classes)
    found = [
        GpuSet(one.needs, max(1, one.host.cpu_milli), max(1, one.host.memory_bytes), one.weight * one.gpus / total)
        for one in classes
        if one.asked.gpus > 1 and one.gpus
    ]
    return sorted(found, key=lambda one: -one.part_of_demand)[:_MOST_SETS]
