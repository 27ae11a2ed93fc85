"""gpushare on the openb nodes: the product's own Fleet and WorkloadMix, updated as the webhook does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpushare.allocation import Allocation, Memory, PodRef, Share
from gpushare.gpunode import Gpu, GpuNode
from gpushare.mix import Host, classes_of
from gpushare.placement import NodeView, Placement
from gpushare.placement.fleet import Fleet
from gpushare.placement.grid import Room
from gpushare.request import Constraints, Demand, Request
from openb.trace import Node, Placed, Pod
from webhook.store.chooser import Asks, WorkloadMix

MIB = 2**20
GPU_GIB = 16  # the lists do not say; their pods request the same part of memory as of compute


class Gpushare:
    """A policy of gpushare, without knowledge of future pods."""

    def __init__(self, policy: str, nodes: Sequence[Node]) -> None:
        self._policy = policy
        self._fleet = Fleet()
        self._workload = WorkloadMix(self._learn)
        self._others = [0, 0]  # milli-CPUs and MiB of another scheduler's pods
        self._views: list[GpuNode] = []
        self._cpu = [node.cpu_milli for node in nodes]
        self._memory = [node.memory_mib for node in nodes]
        self._number = {node.name: number for number, node in enumerate(nodes)}
        self._held: dict[tuple[int, tuple[int, ...], Pod], list[Allocation]] = {}
        self._requests: dict[Pod, Request] = {}
        self._serial = 0
        for number, node in enumerate(nodes):
            self._views.append(GpuNode(node.name, tuple(_gpu(node, index) for index in range(node.gpus))))
            self._show(number)

    def place(self, pod: Pod) -> Placed | None:
        request = self._requests.get(pod) or self._requests.setdefault(pod, _request(pod))
        host = Host(pod.cpu_milli, pod.memory_mib * MIB)
        placement = self._fleet.place(request, host=host, policy=self._policy)
        if not isinstance(placement, Placement):
            return None
        number = self._number[placement.node]
        self._serial += 1
        entry = placement.allocation(
            request, allocation_id=str(self._serial), pod=PodRef("default", uid="known"), reserved_until=None
        )
        node = self._views[number]
        self._views[number] = dataclasses.replace(node, allocations=(*node.allocations, entry))
        gpus = node.gpu_by_uuid()
        placed = Placed(number, tuple(sorted(gpus[uuid].index for uuid in entry.gpu_uuids)))
        self._held.setdefault((number, placed.gpus, pod), []).append(entry)
        self._use(number, pod, 1)
        self._workload.change((), _asks(request, pod))
        return placed

    def remove(self, pod: Pod, placed: Placed) -> None:
        entry = self._held[placed.node, placed.gpus, pod].pop()
        node = self._views[placed.node]
        left = tuple(allocation for allocation in node.allocations if allocation.id != entry.id)
        self._views[placed.node] = dataclasses.replace(node, allocations=left)
        self._use(placed.node, pod, -1)
        self._workload.change(_asks(self._requests[pod], pod), ())

    def occupy(self, number: int, pod: Pod, sign: int) -> None:
        """Subtract the CPU and memory of another scheduler's pod from a node (sign 1), or add them back (-1)."""
        self._others[0] += sign * pod.cpu_milli
        self._others[1] += sign * pod.memory_mib
        self._use(number, pod, sign)

    def _use(self, number: int, pod: Pod, sign: int) -> None:
        self._cpu[number] -= sign * pod.cpu_milli
        self._memory[number] -= sign * pod.memory_mib
        self._show(number)

    def _learn(self) -> None:
        others = Host(self._others[0], self._others[1] * MIB)
        self._fleet.learn(dataclasses.replace(self._workload.snapshot(), others=others))

    def _show(self, number: int) -> None:
        room = Room(self._cpu[number], self._memory[number] * MIB)
        self._fleet.update(NodeView.from_node(self._views[number]), room=room)


def _gpu(node: Node, index: int) -> Gpu:
    group = index // node.linked if node.linked else None
    uuid = f"{node.name}/{index}"
    return Gpu(uuid, index, node.model, GPU_GIB << 30, numa_node=group, link_group=group)


def _request(pod: Pod) -> Request:
    share = Share(pod.percent, 100, Memory(percent=pod.memory_percent))
    demands = (Demand(("main",), share, pod.gpus),) if pod.gpus else ()
    return Request(demands, Constraints(models=pod.models))


def _asks(request: Request, pod: Pod) -> Asks:
    return tuple(classes_of(request, Host(pod.cpu_milli, pod.memory_mib * MIB)))
