"""A lower bound for the unallocated GPUs after any moves, which no plan can beat.

It is a Lagrangian bound of the packing problem in which all placed pods must be placed again and waiting pods may be.
Each pod has a price, and each kind of node one for its CPU and one for its memory. At any prices the GPUs, each filled
with the pods that pay best, hold at least as much as in any placement. So the bound is valid for the prices of any
step; better prices make it tighter. The relaxed constraints are: the placement of all pods at once, CPU and memory per
node (a pod may get its CPU from several nodes of one kind), and that all GPUs of a pod are on one node. The kept
constraints are: which sizes fit together on a GPU, models, the number of GPUs of a node, and the total CPU and memory.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from openb.trace import Node, Pod

_FIRST_STEP = 0.1  # in GPUs
_FADING = 0.998
Floats = NDArray[np.float64]


def least_unallocated(
    nodes: Sequence[Node], there: Iterable[Pod], waiting: Iterable[Pod], *, steps: int = 3000
) -> float:
    """Return the minimal percentage of unallocated GPUs, after any moves of pods in `there` and placement of waiting
    ones.

    The bound is valid after any number of steps.
    """
    there = list(there)
    placed = collections.Counter(pod for pod in there if pod.gpus)
    return _Bound(nodes, placed, placed + collections.Counter(waiting), [pod for pod in there if not pod.gpus]).least(
        steps
    )


class _Bound:
    """The optimization problem.

    placed: pods to place, by class; most: these and the waiting ones; without: pods without a GPU.
    """

    def __init__(
        self, nodes: Sequence[Node], placed: Mapping[Pod, int], most: Mapping[Pod, int], without: Sequence[Pod]
    ) -> None:
        kinds = collections.Counter(dataclasses.replace(node, name="") for node in nodes)
        classes = sorted(most, key=lambda pod: (pod.percent, pod.gpus, pod.cpu_milli, pod.memory_mib, pod.models))
        self._gpus = np.array([kind.gpus * count for kind, count in kinds.items()], float)
        has = np.array([(kind.cpu_milli * count, kind.memory_mib * count) for kind, count in kinds.items()], float)
        scale = has.sum(0) / self._gpus.sum()  # converts everything to GPUs
        self._has = has / scale
        self._asks = np.array([(pod.cpu_milli, pod.memory_mib) for pod in classes], float) / scale
        self._beside = np.array([(pod.cpu_milli, pod.memory_mib) for pod in without], float).reshape(-1, 2) / scale
        self._several = np.array([pod.gpus for pod in classes], float)
        self._size = np.array([pod.size for pod in classes], float) / 100
        self._least = np.array([placed.get(pod, 0) for pod in classes], float)
        self._most = np.array([most[pod] for pod in classes], float)
        self._goes = np.array(
            [
                [pod.gpus <= kind.gpus and (not pod.models or kind.model in pod.models) for pod in classes]
                for kind in kinds
            ]
        )
        percent = np.array([pod.percent for pod in classes])
        self._sizes = np.unique(percent)
        self._of_size = [np.flatnonzero(percent == size) for size in self._sizes]

    def least(self, steps: int) -> float:
        """Return the best bound of all steps."""
        of_pods, of_room = np.zeros(len(self._size)), np.zeros((len(self._gpus), 2))
        best, step = float(self._most @ self._size), _FIRST_STEP  # at best all pods are placed
        for _ in range(steps):
            value, by_pods, by_room = self._value(of_pods, of_room)
            best = min(best, value)
            of_pods = of_pods - step * by_pods / np.maximum(np.abs(by_pods).max(), 1e-9)
            of_room = np.maximum(0.0, of_room - step * by_room / np.maximum(np.abs(by_room).max(), 1e-9))
            step *= _FADING
        return float(100 - 100 * best / self._gpus.sum())

    def _value(self, of_pods: Floats, of_room: Floats) -> tuple[float, Floats, Floats]:
        """Return the maximum that the GPUs hold at these prices, and its gradients."""
        pays = (self._size - of_pods - of_room @ self._asks.T) / self._several
        pays[~self._goes] = -1.0
        chosen = np.stack(
            [part[0] + pays[:, part].argmax(1) for part in self._of_size], 1
        )  # [kind, size] the class that pays best
        by_size = np.take_along_axis(pays, chosen, 1)
        held, fill = self._fill(by_size)
        drawn = np.zeros_like(pays)
        np.put_along_axis(drawn, chosen, fill * self._gpus[:, np.newaxis], 1)
        drawn /= self._several
        number = np.where(of_pods > 0, self._most, self._least)
        value = float(self._gpus @ held + number @ of_pods + (of_room * self._has).sum())
        room = self._has - drawn @ self._asks
        if len(self._beside):
            costs = of_room @ self._beside.T
            where = costs.argmin(0)
            value -= float(costs.min(0).sum())
            np.subtract.at(room, where, self._beside)
        return value, number - drawn.sum(0), room

    def _fill(self, pays: Floats) -> tuple[Floats, Floats]:
        """Return [kind] the value of a GPU filled with the best-paying pods, and [kind, size] their numbers."""
        kinds = np.arange(len(pays))
        best, last = np.zeros((len(pays), 101)), np.full((len(pays), 101), -1)
        for percent in range(1, 101):
            fitting = int(np.searchsorted(self._sizes, percent, "right"))
            best[:, percent] = best[:, percent - 1]
            if fitting:
                with_each = best[:, percent - self._sizes[:fitting]] + pays[:, :fitting]
                which = with_each.argmax(1)
                values = with_each[kinds, which]
                better = values > best[:, percent]
                best[better, percent], last[better, percent] = values[better], which[better]
        fill, left = np.zeros_like(pays), np.full(len(pays), 100)
        while left.max() > 0:
            which = last[kinds, left]
            some = which >= 0
            fill[kinds[some], which[some]] += 1
            left = np.where(some, left - self._sizes[which], left - 1).clip(0)
        return best[:, 100], fill
