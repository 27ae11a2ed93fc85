"""Schedulers to compare: gpushare's own `Fleet`, and known policies, all on the same nodes and pods.

Each says on which node and which of its GPUs a pod goes, or that it fits nowhere, and is told when a pod leaves. The
known policies keep the costs of each kind of pod and work them out again only on nodes that have changed.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bench.openb import Node, Pod
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode
from gpushare.mix import Host, Mix
from gpushare.placement import NodeView, Placement
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.request import Constraints, Demand, Request
from gpushare.share import Memory, Share

MIB = 2**20
GPU_BYTES = {"P100": 16, "T4": 16, "V100M16": 16, "V100M32": 32, "A10": 24, "G2": 24, "G3": 80}  # GiB; nobody asks for it


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    node: int
    gpus: tuple[int, ...]


class Scheduler(Protocol):
    def place(self, pod: Pod) -> Placed | None: ...

    def leave(self, pod: Pod, placed: Placed) -> None: ...


class Gpushare:
    """The product: its own Fleet, learning as it admits."""

    def __init__(self, nodes: Sequence[Node], _pods: Sequence[Pod], _seed: int, *, policy: str = "fragmentation") -> None:
        self._policy = policy
        self._nodes = nodes
        self._mix = Mix()
        self._fleet = Fleet(self._mix)
        self._views: list[GpuNode] = []
        self._cpu = [node.cpu_milli for node in nodes]
        self._memory = [node.memory_mib for node in nodes]
        self._number = {node.name: number for number, node in enumerate(nodes)}
        self._held: dict[tuple[int, tuple[int, ...], Pod], list[Allocation]] = {}
        self._requests: dict[Pod, Request] = {}
        self._serial = 0
        self._next_lesson = 50
        for number, node in enumerate(nodes):
            memory_bytes = GPU_BYTES.get(node.model, 16) << 30
            cards = tuple(Gpu(f"{node.name}/{index}", index, node.model, memory_bytes) for index in range(node.gpus))
            self._views.append(GpuNode(node.name, cards))
            self._show(number)

    def place(self, pod: Pod) -> Placed | None:
        request = self._requests.get(pod) or self._requests.setdefault(pod, _request(pod))
        host = Host(pod.cpu_milli, pod.memory_mib * MIB)
        self._learn(request, host)
        found = self._fleet.place(request, host=host, policy=self._policy)
        if not isinstance(found, Placement):
            return None
        number = self._number[found.node]
        self._serial += 1
        entry = found.allocation(
            request, allocation_id=str(self._serial), pod=PodRef("default", uid="known"), reserved_until=None
        )
        node = self._views[number]
        self._views[number] = dataclasses.replace(node, allocations=(*node.allocations, entry))
        cards = node.gpu_by_uuid()
        placed = Placed(number, tuple(sorted(cards[uuid].index for uuid in entry.gpu_uuids)))
        self._held.setdefault((number, placed.gpus, pod), []).append(entry)
        self._host(number, pod, -1)
        return placed

    def leave(self, pod: Pod, placed: Placed) -> None:
        entry = self._held[placed.node, placed.gpus, pod].pop()
        node = self._views[placed.node]
        left = tuple(one for one in node.allocations if one.id != entry.id)
        self._views[placed.node] = dataclasses.replace(node, allocations=left)
        self._host(placed.node, pod, 1)

    def _host(self, number: int, pod: Pod, sign: int) -> None:
        self._cpu[number] += sign * pod.cpu_milli
        self._memory[number] += sign * pod.memory_mib
        self._show(number)

    def _show(self, number: int) -> None:
        room = Room(self._cpu[number], self._memory[number] * MIB)
        self._fleet.update(NodeView.of(self._views[number]), room=room)

    def _learn(self, request: Request, host: Host) -> None:
        if request.demands:
            self._mix = self._mix.admit(request, host)
        if self._mix.admissions >= self._next_lesson:
            self._fleet.learn(self._mix)
            self._next_lesson = self._mix.admissions + max(100, min(1000, int(0.3 * self._mix.admissions)))


def _request(pod: Pod) -> Request:
    share = Share(pod.percent, 100, Memory(percent=pod.percent))
    demands = (Demand(("main",), share, pod.gpus),) if pod.gpus else ()
    return Request(demands, Constraints(models=pod.models))
