"""Pods without a GPU as kube-scheduler places them: by its default scores, on nodes with and without GPUs.

Scores and weights are those of kube-scheduler's default profile (pkg/scheduler/apis/config/v1/default_plugins.go):
NodeResourcesFit by LeastAllocated 1, NodeResourcesBalancedAllocation 1, TaintToleration 3; the others are equal for all
nodes here. Ties are broken at random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from openb.known_policies import KnownPolicy
from openb.own_policies import Gpushare
from openb.trace import Node, Placed, Pod

TAINT_WEIGHT = 3


class BesideKubeScheduler:
    """A cluster where `ours` places pods with shares on the nodes, and kube-scheduler the others, there and elsewhere.

    is_tainted: GPU nodes have PreferNoSchedule.
    """

    def __init__(
        self,
        ours: Gpushare | KnownPolicy,
        nodes: Sequence[Node],
        others: Sequence[Node],
        seed: int,
        *,
        is_tainted: bool,
    ) -> None:
        self._ours = ours
        self._gpu_nodes = len(nodes)
        every = [*nodes, *others]
        self._has = np.array([(node.cpu_milli, node.memory_mib) for node in every], float)
        self._used = np.zeros_like(self._has)
        self._draw = random.Random(seed)
        self._taint = np.zeros(len(every))
        if is_tainted and others:  # if all nodes have the same taint, the plugin gives all the same score
            self._taint[len(nodes) :] = 100.0 * TAINT_WEIGHT

    def place(self, pod: Pod) -> Placed | None:
        placed = self._ours.place(pod) if pod.gpus else self._place_without_gpu(pod)
        if placed is not None:
            self._used[placed.node] += pod.cpu_milli, pod.memory_mib
        return placed

    def remove(self, pod: Pod, placed: Placed) -> None:
        self._used[placed.node] -= pod.cpu_milli, pod.memory_mib
        if pod.gpus:
            self._ours.remove(pod, placed)
        elif placed.node < self._gpu_nodes:
            self._ours.occupy(placed.node, pod, -1)

    def _place_without_gpu(self, pod: Pod) -> Placed | None:
        after = (self._used + np.array((pod.cpu_milli, pod.memory_mib))) / self._has
        fits = (after <= 1.0).all(axis=1)
        if not fits.any():
            return None
        least_allocated = np.floor(100 * (1 - after)).mean(axis=1)
        balanced = 100 * (1 - np.abs(after[:, 0] - after[:, 1]) / 2)
        score = np.where(fits, np.floor(least_allocated) + np.floor(balanced) + self._taint, -1.0)
        node = int(self._draw.choice(np.flatnonzero(score == score.max())))
        if node < self._gpu_nodes:
            self._ours.occupy(node, pod, 1)
        return Placed(node, ())
