"""Known placement policies on the same nodes and pods, for comparison: array computations, cached by kind of pod.

random, first-fit: the first node by number with room. best-fit: least CPU and GPU left, as parts of the largest node,
as FGD's authors define it. fgd: fragmentation gradient descent as published, the score rounded to whole numbers of 0 to
100; fgd-fuller: the same, with ties broken by the least GPU and CPU left, its strongest known form. FGD
knows the whole list of pods in advance, as in its authors' experiments. Where pods request different parts of a GPU's
memory and compute, a GPU's free part is the mean of both; no publication covers that case.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from openb.trace import Node, Placed, Pod

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MAX_GPUS = 8


@dataclasses.dataclass(slots=True)
class State:
    """The state of nodes [n]; `free` and `gpu_memory` [n, g] in percent, below 0 where there is no GPU."""

    cpu: Ints
    memory: Ints
    free: Ints
    gpu_memory: Ints
    model: Ints

    def at(self, nodes: Ints) -> State:
        return State(self.cpu[nodes], self.memory[nodes], self.free[nodes], self.gpu_memory[nodes], self.model[nodes])

    def has_room(self, pod: Pod) -> Bools:
        """Return [n, g] whether the GPU has what the pod requests of each."""
        room: Bools = (self.free >= pod.percent) & (self.gpu_memory >= pod.memory_percent)
        return room

    def both(self) -> Floats:
        """Return [n, g] the GPU's free percentage: the mean of compute and memory."""
        return np.maximum((self.free + self.gpu_memory) / 2, 0)


@dataclasses.dataclass(slots=True)
class _Kept:
    cost: Floats
    gpus: Ints  # [n, gpus]
    clock: int = -1


# (pod, nodes where it fits) -> costs, and the GPUs to use
Policy = Callable[["KnownPolicy", Pod, State], tuple[Floats, Ints]]


class KnownPolicy:
    """One of `POLICIES` on the openb nodes."""

    def __init__(self, name: str, nodes: Sequence[Node], pods: Sequence[Pod], seed: int) -> None:
        self._policy = POLICIES[name]
        self._random = np.random.default_rng(seed) if name == "random" else None
        models = sorted({node.model for node in nodes})
        self.model_numbers = {model: number for number, model in enumerate(models)}
        free = np.full((len(nodes), MAX_GPUS), -1, np.int64)
        for number, node in enumerate(nodes):
            free[number, : node.gpus] = 100
        self.state = State(
            np.array([node.cpu_milli for node in nodes]),
            np.array([node.memory_mib for node in nodes]),
            free,
            free.copy(),
            np.array([self.model_numbers[node.model] for node in nodes]),
        )
        self.most = (max(self.state.cpu), max(self.state.memory), 100 * MAX_GPUS)
        self.fragments = Fragments(pods, self.model_numbers)
        self._kept: dict[Pod, _Kept] = {}
        self._changed = np.zeros(len(nodes), np.int64)
        self._clock = 0

    def place(self, pod: Pod) -> Placed | None:
        kept = self._kept.get(pod)
        if kept is None:
            count = len(self._changed)
            kept = self._kept[pod] = _Kept(np.full(count, np.inf), np.zeros((count, pod.gpus), np.int64))
        stale = np.flatnonzero(self._changed > kept.clock)
        state = self.state.at(stale)
        fits = self._fits(pod, state)
        kept.cost[stale] = np.inf
        if fits.any():
            there = np.flatnonzero(fits)
            kept.cost[stale[there]], kept.gpus[stale[there]] = self._policy(self, pod, state.at(there))
        kept.clock = self._clock
        if self._random is not None:
            possible = np.flatnonzero(kept.cost < np.inf)
            node = int(self._random.choice(possible)) if len(possible) else -1
        else:
            node = int(kept.cost.argmin())
            node = node if kept.cost[node] < np.inf else -1
        if node < 0:
            return None
        placed = Placed(node, tuple(kept.gpus[node].tolist()))
        self._add(pod, placed, -1)
        return placed

    def remove(self, pod: Pod, placed: Placed) -> None:
        self._add(pod, placed, 1)

    def occupy(self, number: int, pod: Pod, sign: int) -> None:
        """Subtract the pod's CPU and memory from a node (sign 1), or add them back (-1)."""
        self._add(pod, Placed(number, ()), -sign)

    def _fits(self, pod: Pod, state: State) -> Bools:
        fits: Bools = (state.cpu >= pod.cpu_milli) & (state.memory >= pod.memory_mib)
        if pod.models:
            fits &= np.isin(state.model, [self.model_numbers[model] for model in pod.models])
        if pod.gpus:
            fits &= state.has_room(pod).sum(1) >= pod.gpus
        return fits

    def _add(self, pod: Pod, placed: Placed, sign: int) -> None:
        self.state.cpu[placed.node] += sign * pod.cpu_milli
        self.state.memory[placed.node] += sign * pod.memory_mib
        self.state.free[placed.node, list(placed.gpus)] += sign * pod.percent
        self.state.gpu_memory[placed.node, list(placed.gpus)] += sign * pod.memory_percent
        self._clock += 1
        self._changed[placed.node] = self._clock


class Fragments:
    """Fragmentation of a node for a mix of pods, after Weng et al.: the part of its free GPUs that each class cannot
    use.
    """

    def __init__(self, pods: Sequence[Pod], models: Mapping[str, int]) -> None:
        classes = collections.Counter(pods)
        self._weight = np.array(list(classes.values())) / len(pods)
        self._cpu = np.array([pod.cpu_milli for pod in classes])
        self._memory = np.array([pod.memory_mib for pod in classes])
        self._gpus = np.array([pod.gpus for pod in classes])
        sizes = {size: number for number, size in enumerate(sorted({_size(pod) for pod in classes}))}
        self._sizes = np.array(list(sizes))  # [size, 2]
        self._size = np.array([sizes[_size(pod)] for pod in classes])
        allowed = [[not pod.models or model in pod.models for model in models] for pod in classes]
        self._allowed = np.array(allowed).T  # [model, class]

    def per_node(self, state: State) -> Floats:
        """Return [n] the fragmentation of each node, in percent of a GPU."""
        free = state.both()
        enough = state.free[:, :, np.newaxis] >= self._sizes[:, 0]  # [n, g, size]
        enough &= state.gpu_memory[:, :, np.newaxis] >= self._sizes[:, 1]
        count = enough.sum(1)
        useless = (free[:, :, np.newaxis] * ~enough).sum(1)
        runs = (state.cpu[:, np.newaxis] >= self._cpu) & (state.memory[:, np.newaxis] >= self._memory)
        runs &= self._allowed[state.model] & (count[:, self._size] >= self._gpus) & (self._gpus > 0)
        lost = np.where(runs, useless[:, self._size], free.sum(1)[:, np.newaxis])
        fragments: Floats = lost @ self._weight
        return fragments


def _size(pod: Pod) -> tuple[int, int]:
    return pod.percent, pod.memory_percent


def _tightest(pod: Pod, state: State) -> Ints:
    order: Ints = np.where(state.has_room(pod), state.both(), 1000).argsort(1, kind="stable")[:, : pod.gpus]
    return order


def _first_fit(_known: KnownPolicy, pod: Pod, state: State) -> tuple[Floats, Ints]:
    order = (~state.has_room(pod)).argsort(1, kind="stable")[:, : pod.gpus]
    return np.zeros(len(state.cpu)), order


def _best_fit(known: KnownPolicy, pod: Pod, state: State) -> tuple[Floats, Ints]:
    cpu, _, gpu = known.most
    left = (state.cpu - pod.cpu_milli) / cpu
    return left + (state.both().sum(1) - pod.size) / gpu, _tightest(pod, state)


def _after(pod: Pod, state: State, gpus: Ints) -> State:
    free, gpu_memory = state.free.copy(), state.gpu_memory.copy()
    np.put_along_axis(free, gpus, np.take_along_axis(free, gpus, 1) - pod.percent, 1)
    np.put_along_axis(gpu_memory, gpus, np.take_along_axis(gpu_memory, gpus, 1) - pod.memory_percent, 1)
    return State(state.cpu - pod.cpu_milli, state.memory - pod.memory_mib, free, gpu_memory, state.model)


def _growth(known: KnownPolicy, pod: Pod, state: State) -> tuple[Floats, Ints]:
    """Return the growth of fragmentation, in percent of a GPU, and the GPUs where it is smallest."""
    before = known.fragments.per_node(state)
    if pod.gpus != 1 or min(pod.percent, pod.memory_percent) == 100:
        gpus = _tightest(pod, state)
        return known.fragments.per_node(_after(pod, state, gpus)) - before, gpus
    nodes, gpus = np.nonzero(state.has_room(pod))
    after = _after(pod, state.at(nodes), gpus[:, np.newaxis])
    growth = np.full(state.free.shape, np.inf)
    growth[nodes, gpus] = known.fragments.per_node(after) - before[nodes]
    best = (growth.round(9) + 0.0).argmin(1)
    return growth[np.arange(len(best)), best], best[:, np.newaxis]


def _fgd(known: KnownPolicy, pod: Pod, state: State) -> tuple[Floats, Ints]:
    growth, gpus = _growth(known, pod, state)
    return -np.floor(100 / (1 + np.exp(growth / 100))), gpus


def _fgd_fuller(known: KnownPolicy, pod: Pod, state: State) -> tuple[Floats, Ints]:
    cost, gpus = _fgd(known, pod, state)
    return cost + 1e-4 * (state.both().sum(1) / 100 + state.cpu / 12_000), gpus


def _any_fit(_known: KnownPolicy, pod: Pod, state: State) -> tuple[Floats, Ints]:
    return np.zeros(len(state.cpu)), _tightest(pod, state)


POLICIES: Mapping[str, Policy] = {
    "random": _any_fit,
    "first-fit": _first_fit,
    "best-fit": _best_fit,
    "fgd": _fgd,
    "fgd-fuller": _fgd_fuller,
}
