"""Openings: several pods leave one node at once, so that a gated pod fits there.

A chain frees one place after another; an opening frees everything that one pod needs: several GPUs, a whole GPU that
pods share, or the CPU of its node. Its GPUs are cordoned until all pods have left, so that no other pod takes the
capacity.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from gpushare import ledger
from gpushare.defragmentation import leaving
from gpushare.defragmentation.cpu_only import CpuOnlyPod
from gpushare.defragmentation.exchanges import Chain, Clearings, Exchanges, Mover, Shape
from gpushare.defragmentation.leaving import covers, smallest_sets
from gpushare.gpunode import Gpu
from gpushare.mix import Host
from gpushare.placement import NodeView, filters
from gpushare.request import Demand
from gpushare.whatif.world import World

MAX = 6  # pods that leave together
_MAX_ON_A_GPU = 8  # pods of one GPU that are considered, those that are cheapest to place again
_MAX_FOR_A_GPU = 4
_MAX_FOR_CPU = 3
_MAX_WAYS = 3  # for each GPU


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """Pods that leave so that a GPU has room; `cost`: of placing them again, in GPUs."""

    cost: float
    movers: tuple[Mover, ...]
    gpus: tuple[str, ...]

    @property
    def rank(self) -> tuple[int, float, list[str]]:
        """A sort key: the fewest moves first, then the cheapest."""
        return len(self.movers), self.cost, [mover.entry.id for mover in self.movers]


def openings(
    world: World,
    exchanges: Exchanges,
    clearings: Clearings | None,
    waiting: Iterable[Shape],
    most: int,
    *,
    worth: float,
) -> list[Chain]:
    """Return the openings of at most `most` moves for these shapes.

    clearings: of the CPU-only pods that may leave, too.
    """
    wanted = [shape for shape in dict.fromkeys(waiting) if len(shape[0].demands) == 1]
    costs = exchanges.lowest()
    chains: dict[tuple[str, ...], Chain] = {}
    for name, movers in exchanges.movers():
        there = [(costs[mover.shape], mover) for mover in movers if costs[mover.shape] < math.inf]
        node = _Node(world, name, there, clearings.on(name) if clearings else ())
        for shape in wanted:
            for way in node.ways(shape, min(most, MAX)):
                gpus = sum(mover.percent for mover in way.movers) / 100
                demand = shape[0].demands[0]
                size = demand.gpus * demand.share.request_percent / 100
                chain = Chain(
                    tuple(sorted(way.movers, key=lambda mover: -mover.percent)),
                    worth * size - size + gpus - way.cost,
                    tuple((name, uuid) for uuid in way.gpus),
                )
                key = tuple(sorted(mover.entry.id for mover in way.movers))
                if chain.promise > 0 and (key not in chains or chains[key].promise < chain.promise):
                    chains[key] = chain
    return [*chains.values()]


class _Node:
    """A node with the pods that fit elsewhere, and the cost of each of them there."""

    def __init__(
        self, world: World, name: str, movers: Sequence[tuple[float, Mover]], cpu_only_pods: Sequence[CpuOnlyPod]
    ) -> None:
        self._view: NodeView = world.views[name]
        self._room = world.room(name)
        self._movers = sorted(movers, key=lambda mover: mover[0])
        self._cpu_only_pods = cpu_only_pods
        self._known: dict[tuple[str, Demand], list[_Way]] = {}

    def ways(self, shape: Shape, most: int) -> Iterator[_Way]:
        """Yield the non-empty ways to make room for such a pod."""
        request, host = shape
        demand = request.demands[0]
        gpus = [(gpu, used) for gpu, used in self._view.gpus() if gpu.takes_shares]
        if len(gpus) < demand.gpus or not (self._movers or self._cpu_only_pods):
            return
        gpu = gpus[0][0]
        if filters.reject(filters.FilterInput(gpu, ledger.NOTHING, demand.share, request.constraints)) is not None:
            return
        by_gpu = [ways for ways in (self._of_gpu(gpu, used, demand) for gpu, used in gpus) if ways]
        by_gpu.sort(key=lambda ways: ways[0].rank)
        if len(by_gpu) < demand.gpus:
            return
        for chosen in by_gpu if demand.gpus == 1 else [[_together(ways[0] for ways in by_gpu[: demand.gpus])]]:
            for way in chosen:
                enlarged = self._with_host_room(way, host.cpu_milli, host.memory_bytes)
                if enlarged is not None and 0 < len(enlarged.movers) <= most:
                    yield enlarged

    @property
    def _all_gpus(self) -> tuple[str, ...]:
        """All GPUs of the node: a pod that moved to another one would still use the node's CPU."""
        return tuple(gpu.uuid for gpu in self._view.node.gpus if gpu.takes_shares)

    def _of_gpu(self, gpu: Gpu, used: ledger.GpuUse, demand: Demand) -> list[_Way]:
        key = gpu.uuid, demand
        if key not in self._known:
            self._known[key] = sorted(self._smallest(gpu, used, demand), key=lambda way: way.rank)[:_MAX_WAYS]
        return self._known[key]

    def _smallest(self, gpu: Gpu, used: ledger.GpuUse, demand: Demand) -> Iterator[_Way]:
        """Yield the smallest sets of pods without which the GPU has room."""
        percent = used.request_percent + demand.share.request_percent - 100
        memory = used.memory_bytes + demand.share.memory.on(gpu.memory_bytes) - gpu.memory_bytes
        there = [
            (cost, mover, *mover.on(gpu.uuid)) for cost, mover in self._movers if gpu.uuid in mover.entry.gpu_uuids
        ][:_MAX_ON_A_GPU]

        def enough(gone: Sequence[tuple[float, Mover, int, int]]) -> bool:
            return sum(freed for _, _, freed, _ in gone) >= percent and sum(freed for _, _, _, freed in gone) >= memory

        for gone in smallest_sets(there, range(_MAX_FOR_A_GPU + 1), enough):
            movers = tuple(mover for _, mover, _, _ in gone)
            yield _Way(sum(cost for cost, _, _, _ in gone), movers, (gpu.uuid,))

    def _with_host_room(self, way: _Way, cpu_milli: float, memory_bytes: float) -> _Way | None:
        """Return the way with more pods if the node would still lack CPU or memory; None if no pods are enough."""
        cpu = cpu_milli - self._room.cpu_milli - sum(mover.host.cpu_milli for mover in way.movers)
        memory = memory_bytes - self._room.memory_bytes - sum(mover.host.memory_bytes for mover in way.movers)
        if cpu <= 0 and memory <= 0:
            return way
        clears = leaving.enough(self._cpu_only_pods, Host(max(0, int(cpu)), max(0, int(memory))))
        if clears is not None:  # CPU-only pods cost no GPU capacity elsewhere
            return _Way(way.cost, (*way.movers, *map(Mover.from_cpu_only, clears)), self._all_gpus)
        ids = {mover.entry.id for mover in way.movers}
        others = [(cost, mover) for cost, mover in self._movers if mover.entry.id not in ids]
        sets = smallest_sets(
            others[: _MAX_ON_A_GPU * 2],
            range(1, _MAX_FOR_CPU + 1),
            lambda more: covers((mover.host for _, mover in more), cpu, memory),
        )
        more = min(sets, key=lambda more: sum(cost for cost, _ in more), default=None)
        if more is None:
            return None
        cost = way.cost + sum(cost for cost, _ in more)
        return _Way(cost, (*way.movers, *(mover for _, mover in more)), self._all_gpus)


def _together(ways: Iterable[_Way]) -> _Way:
    ways = list(ways)
    movers = {mover.entry.id: mover for way in ways for mover in way.movers}
    cost = sum({mover.entry.id: way.cost / max(1, len(way.movers)) for way in ways for mover in way.movers}.values())
    return _Way(cost, tuple(movers.values()), tuple(uuid for way in ways for uuid in way.gpus))
