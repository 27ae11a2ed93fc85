"""Worth: the worth of a node's free capacity to the mix, in GPUs; a pod goes where it falls least.

* A free part of a GPU is worth what the mix could fill of it (`cutting_stock`), of compute or memory: the less counts.
* A node's GPUs are worth only what its free CPU and memory can feed: of the demand that fits the node's kind of GPU,
  the part that needs the least CPU per GPU, as far as the free CPU per free GPU goes. There is a curve for each kind.
* A set of GPUs on one node that a request for several could take adds its price (`pricing`) while it is whole, and a
  little more if its GPUs are all linked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpushare.gpunode import Gpu
from gpushare.mix import Mix, RequestClass
from gpushare.placement import eligibility
from gpushare.placement.eligibility import Needs
from gpushare.placement.grid import POINTS, Bools, Columns, Floats, Ints
from gpushare.placement.request_key import DemandKey
from gpushare.placement.topology import GpuTopology

_POINTS = 1024  # of a curve
_MAX_SETS = 12  # most common classes with several GPUs, which get prices
_MIN_FREE = 1e-9
_ANY = 2**31  # GPUs of a node that takes any request
_LINKED = 0.05  # GPUs, per GPU of a linked set; below `topology.UNLINKED_COST`, so that pods that need one take it
_BROKEN = 0.97  # factor for a partly used GPU: only a whole one fits every request, also later
_STEPS = 1200
_FIRST_STEP = 0.2
_SLOWER = 0.02


class GpuSets:
    """The most common classes of requests for several GPUs of one node, as arrays over them.

    If nodes have linked GPUs, sets of 2, 3, … linked GPUs follow, one for each requested number.
    """

    def __init__(self, classes: Sequence[_Class], most_linked: int, unknown_gpus: float) -> None:
        total = sum(pods.weight * pods.gpus for pods in classes) + unknown_gpus
        several = [pods for pods in classes if pods.asked.gpus > 1 and pods.gpus]
        several = sorted(several, key=lambda pods: -pods.weight * pods.gpus)[:_MAX_SETS]
        alike: dict[object, int] = {}
        self.groups: list[Needs] = []  # needs of their GPUs, shared by sets
        group = []
        for pods in several:
            key = (pods.asked.request_percent, pods.asked.memory, pods.asked.constraints)
            if key not in alike:
                alike[key] = len(alike)
                self.groups.append(pods.needs)
            group.append(alike[key])
        # GPUs → part of the demand; and the needs of the class with the largest demand for that number.
        linked: dict[int, float] = {}
        self._linked_like: list[int] = []
        for pods, number in zip(several, group, strict=True):
            if pods.asked.gpus <= most_linked:
                self._linked_like += [] if pods.asked.gpus in linked else [number]
                linked[pods.asked.gpus] = linked.get(pods.asked.gpus, 0.0) + pods.weight * pods.gpus / total
        self._linked_gpus = list(linked)
        none = [0.0] * len(linked)
        self._group = np.array(group + [len(self.groups) + number for number in range(len(linked))], np.int64)
        self._cpu = np.maximum(1.0, [pods.host.cpu_milli for pods in several] + none)[:, np.newaxis]
        self._host = np.maximum(1.0, [pods.host.memory_bytes for pods in several] + none)[:, np.newaxis]
        self.gpus = np.array([pods.asked.gpus for pods in several] + self._linked_gpus, np.int64)
        self.part_of_demand = np.array([pods.weight * pods.gpus / total for pods in several] + [*linked.values()])
        self.worth = np.array([1.0] * len(several) + [_LINKED] * len(linked))  # in GPUs, per GPU at full scarcity

    def __len__(self) -> int:
        return len(self.gpus)

    def in_groups(self, compute_percent: Ints, memory_percent: Ints, live: Ints) -> Bools:
        """[group, …] Whether a GPU with so much free fits each group's requests."""
        fits = np.zeros((len(self.groups), *live.shape), np.bool_)
        for number, needs in enumerate(self.groups):
            fits[number] = compute_percent >= needs.request_percent
            fits[number] &= memory_percent >= needs.most_percent[live]
        return fits

    @property
    def rows(self) -> int:
        """The number of rows of `counts`: one per group, one per size of linked sets."""
        return len(self.groups) + len(self._linked_gpus)

    def counts(self, fits: Bools, layout: Ints, known: Sequence[GpuTopology]) -> Ints:
        """Return [row, n] GPUs of each group, then GPUs in whole linked sets; fits [group, g, n], layout [n] of
        `known`.
        """
        counts = np.zeros((self.rows, fits.shape[2]), np.int64)
        counts[: len(self.groups)] = fits.sum(1)
        self.count_linked(counts, fits, layout, known)
        return counts

    def count_linked(self, counts: Ints, fits: Bools, layout: Ints, known: Sequence[GpuTopology]) -> None:
        """Write the rows of linked sets."""
        if not self._linked_gpus:
            return
        linked = counts[len(self.groups) :]
        linked[:] = 0
        for number in np.flatnonzero(np.bincount(layout, minlength=1)).tolist():
            at = np.flatnonzero(layout == number)
            for rows in known[number].links():
                free = fits[:, rows][:, :, at].sum(1)
                for row, (like, gpus) in enumerate(zip(self._linked_like, self._linked_gpus, strict=True)):
                    linked[row, at] += free[like] // gpus * gpus

    def copies(self, counts: Ints, cpu: Floats, host: Floats, which: Ints) -> Floats:
        """Return [set, n] how many times the node could take each of these sets; counts [row, n] of GPUs."""
        by_gpus = counts[self._group[which]] / self.gpus[which, np.newaxis]
        by_host = np.minimum(cpu / self._cpu[which], host / self._host[which])
        copies: Floats = np.floor(np.maximum(np.minimum(by_gpus, by_host), 0.0))
        return copies


class Curve:
    """[kind] Free CPU (or memory) per free GPU → the part of the GPU's demand that it can feed, 0 to 1."""

    def __init__(self, points: Sequence[tuple[Floats, Floats]], scale: float) -> None:
        """points: for each kind, the need per GPU of each class in ascending order, and the class's part of the
        demand. scale: of all needs.
        """
        values = np.ones((len(points), _POINTS + 2))
        self._scale = np.zeros(len(points))
        for kind, (need, part) in enumerate(points):
            needed, served = np.cumsum(need * part), np.cumsum(part)
            if not len(need) or needed[-1] <= 0:
                continue
            self._scale[kind] = _POINTS / needed[-1] / scale
            at = np.linspace(0, needed[-1], _POINTS + 1)
            values[kind, :-1] = np.interp(at, np.append(0.0, needed), np.append(0.0, served))
        self._values = values.ravel()

    def usable(self, free: Floats, gpus: Floats, kind: Ints) -> Floats:
        """Return [n] the usable part for so much free on nodes with so many free GPUs."""
        place = np.minimum(np.maximum(free, 0.0) / np.maximum(gpus, _MIN_FREE) * self._scale[kind], _POINTS)
        point = place.astype(np.int64)
        base = kind * (_POINTS + 2) + point
        low = self._values[base]
        usable: Floats = low + (self._values[base + 1] - low) * (place - point)
        return usable


class Worth:
    """The tables of one mix for the known kinds of GPU."""

    def __init__(
        self, mix: Mix, kinds: Sequence[Gpu | None], *, most_linked: int = 1, node_gpus: Sequence[int] = ()
    ) -> None:
        """most_linked: size of the largest link group. node_gpus: [kind] GPUs of its largest node; empty: unknown."""
        self.mix = mix
        self.node_gpus = tuple(node_gpus) or (_ANY,) * len(kinds)
        self.kinds = len(kinds)
        self.most_linked = most_linked
        self.ignorance = mix.ignorance  # stored, because each decision needs it
        classes = [_Class(asked, weight, kinds, self.node_gpus) for asked, weight in mix.expecting().items()]
        self.compute = _table((pods, pods.asked.request_percent) for pods in classes)  # [POINTS]
        memory = [
            _table((pods, int(pods.needs.memory_percent[number])) for pods in classes)
            for number, kind in enumerate(kinds)
            if kind
        ]
        # Usually memory is requested in proportion to compute, and one table serves both.
        self.is_alike = all(table is self.compute for table in memory)
        self.memory = np.concatenate([self.compute, *memory])  # [kind × POINTS]
        self.demand = _demand(classes, mix.unknown_gpus)
        (cpu, host), every = mix.host_scale, range(self.kinds)
        self._cpu = Curve([_points(classes, kind, lambda pods: pods.host.cpu_milli) for kind in every], cpu)
        self._host = Curve([_points(classes, kind, lambda pods: pods.host.memory_bytes) for kind in every], host)
        is_choosy = not all(pods.needs.will_do[1:].all() for pods in classes)
        self.sets = GpuSets(classes, most_linked, mix.unknown_gpus * is_choosy)  # otherwise sets keep no kind scarce

    def of_gpus(self, columns: Columns) -> Floats:
        """Return [g, n] the worth of each GPU."""
        if self.is_alike:
            alike: Floats = self.compute[columns.least_percent]
            return alike
        worth: Floats = np.minimum(self.compute[columns.compute_percent], self.memory[columns.memory_point])
        return worth

    def usable(self, gpus: Floats, cpu: Floats, host: Floats, kind: Ints) -> Floats:
        """Return [n] the part of the GPUs' worth that free CPU (milli-CPUs) and memory (bytes) can feed."""
        return gpus * np.minimum(self._cpu.usable(cpu, gpus, kind), self._host.usable(host, gpus, kind))

    def losses(self, columns: Columns, part: Needs, gpus: Floats) -> Floats:
        """Return [g, n] the worth that each GPU would lose to the part; arbitrary where it does not fit."""
        left = np.maximum(np.arange(POINTS) - part.request_percent, 0)
        if self.is_alike and part.uniform_percent is not None:
            losses: Floats = (self.compute - self.compute[left])[columns.least_percent]
            return losses
        kinds = np.arange(self.kinds)[:, np.newaxis]
        of_kind = np.maximum(np.arange(POINTS) - part.memory_percent[:, np.newaxis], 0) + POINTS * kinds
        by_memory = self.memory[of_kind].ravel()[columns.memory_point]
        after: Floats = np.minimum(self.compute[left][columns.compute_percent], by_memory)
        return np.subtract(gpus, after, out=after)


class Loss:
    """`Worth.losses` for one GPU at a time, identical to the last bit."""

    def __init__(self, worth: Worth, part: Needs) -> None:
        self._compute = worth.compute
        self._memory = worth.memory
        self._part = part
        self._alike = worth.is_alike
        self._uniform = worth.is_alike and part.uniform_percent is not None

    def of(self, kind: int, compute_percent: int, memory_percent: int) -> float:
        """Return the worth that a GPU of this kind, with so much free, would lose to the part."""
        part, compute = self._part, self._compute
        least = min(compute_percent, memory_percent)
        if self._uniform:
            return float(compute[least] - compute[max(least - part.request_percent, 0)])
        base = kind * POINTS
        before = compute[least] if self._alike else min(compute[compute_percent], self._memory[base + memory_percent])
        compute_after = compute[max(compute_percent - part.request_percent, 0)]
        memory_after = self._memory[base + max(memory_percent - int(part.memory_percent[kind]), 0)]
        return float(before - min(compute_after, memory_after))


class _Class:
    """A class of the mix with its sizes on the known kinds."""

    def __init__(
        self, asked: RequestClass, weight: float, kinds: Sequence[Gpu | None], node_gpus: Sequence[int]
    ) -> None:
        part = DemandKey(asked.gpus, asked.request_percent, asked.memory)
        self.asked = asked
        self.host = asked.host
        self.weight = weight
        self.needs = eligibility.needs_of(part, asked.constraints, kinds)
        sizes = np.array([asked.size_on(kind.memory_bytes) if kind else 0.0 for kind in kinds])
        fits = self.needs.will_do & (np.array(node_gpus) >= asked.gpus)
        self.size = np.where(fits, sizes, 0.0)  # [kind] GPUs; 0 where it does not fit
        self.gpus = float(self.size.max())  # GPUs requested; 0 if it fits nowhere


def _table(sizes: Iterable[tuple[_Class, int]]) -> Floats:
    """Return the worth by free percent [POINTS] for these sizes in percent; the same array for the same sizes."""
    weights: dict[int, float] = {}
    for pods, percent in sizes:
        if 1 <= percent <= 100:
            weights[percent] = weights.get(percent, 0.0) + pods.weight * pods.asked.gpus
    return cutting_stock(tuple(sorted(weights.items())))


def _points(classes: Sequence[_Class], kind: int, need: Callable[[_Class], int]) -> tuple[Floats, Floats]:
    there = [pods for pods in classes if pods.size[kind] > 0]
    if not there:
        return np.zeros(0), np.zeros(0)
    size = np.array([pods.size[kind] for pods in there])
    part = size * np.array([pods.weight for pods in there])
    per_gpu = np.array([need(pods) for pods in there]) / size
    order = per_gpu.argsort(kind="stable")
    return per_gpu[order], (part / part.sum())[order]


def _demand(classes: Sequence[_Class], unknown_gpus: float) -> tuple[Bools, Floats]:
    """Return each set of kinds that a class can use [m, kind], and its part of all requested GPUs [m].

    unknown_gpus: requested in addition, of any kind.
    """
    parts: dict[tuple[bool, ...], float] = {}
    for pods in classes:
        if pods.gpus:
            key = tuple(bool(will_do) for will_do in pods.size > 0)
            parts[key] = parts.get(key, 0.0) + pods.weight * pods.gpus
    if unknown_gpus and parts:
        anywhere = tuple(map(any, zip(*parts, strict=True)))
        parts[anywhere] = parts.get(anywhere, 0.0) + unknown_gpus
    total = sum(parts.values())
    return np.array(list(parts), np.bool_), np.array([part / total for part in parts.values()])


@functools.lru_cache(maxsize=64)
def cutting_stock(weights: tuple[tuple[int, float], ...]) -> Floats:
    """Return the worth of 0 to 100 free percent, 0 to 1. weights: how often each size (1 to 100) is requested.

    This is the linear programme of the cutting-stock problem: fill GPUs with patterns of sizes so that most is used,
    with no more of a size than the mix has. Its duals are the scarcity of each size, above all of small ones that fill
    the rest. A part is worth the best pattern that fits it, each size at its own worth less its scarcity: 0.19 of a GPU
    is worth almost nothing if no pod requests so little, and 0.5 is half a GPU if halves are plentiful. Solved by
    subgradient steps, each an unbounded knapsack over whole percents; the later steps are averaged.
    """
    sizes = [size for size, weight in weights if weight > 0]
    mean = sum(size * weight for size, weight in weights) / 100
    supply = [weight / mean for _, weight in weights if weight > 0]  # per GPU, so that the sizes add up to one GPU
    duals = [0.0] * len(sizes)
    total = np.zeros(POINTS)
    for step in range(_STEPS if sizes else 0):
        best, used = _knapsack(sizes, duals)
        rate = _FIRST_STEP / (1 + step * _SLOWER)
        for item, size in enumerate(sizes):
            duals[item] = max(0.0, duals[item] + rate * (used[item] - supply[item]) * size / 100)
        if step >= _STEPS // 2:
            total += best
    worth: Floats = total / total[-1] if total[-1] > 0 else np.arange(POINTS) / 100
    worth[:-1] *= _BROKEN
    return worth


def _knapsack(sizes: list[int], duals: list[float]) -> tuple[list[float], list[int]]:
    """Return the best value of each capacity from 0 to 100, and how often each size is in the best pattern of 100."""
    best = [0.0] * 101
    taken = [-1] * 101
    for item, size in enumerate(sizes):
        value = size / 100 - duals[item]
        if value <= 0:
            continue
        for capacity in range(size, 101):
            with_it = best[capacity - size] + value
            if with_it > best[capacity] + 1e-12:
                best[capacity] = with_it
                taken[capacity] = item
    used = [0] * len(sizes)
    capacity = 100
    while capacity > 0 and best[capacity] > 0:
        item = taken[capacity]
        used[item] += 1
        capacity -= sizes[item]
    return best, used
