"""Chains of moves that promise to raise the cluster's value."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from gpushare import ledger
from gpushare.allocation import Allocation
from gpushare.defragmentation import leaving
from gpushare.defragmentation.leaving import CpuOnlyPod, CpuOnlyPods, MayLeave, covers, smallest_sets
from gpushare.gpunode import Gpu
from gpushare.mix import Host
from gpushare.placement import NodeView, filters
from gpushare.request import Demand, Request
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World

MAX: Final = 4  # moves in a chain
_MAX_CLEARED: Final = 4  # CPU-only pods per node that are considered, those with the most CPU
_NO_SHAPE: Final = -1
Shape = tuple[Request, Host]


@dataclasses.dataclass(frozen=True, slots=True)
class Mover:
    """A pod that may be moved, with its current place. `shape`: the number of its request."""

    node: str
    entry: Allocation
    shape: int
    host: Host

    @classmethod
    def from_cpu_only(cls, known: CpuOnlyPod) -> Mover:
        """Return a CPU-only pod as a member of a chain."""
        return cls(known.node, known.entry, _NO_SHAPE, known.host)

    @property
    def percent(self) -> int:
        """The pod's compute in percent, summed over its GPUs."""
        return ledger.held_in_all(self.entry)[0]

    def on(self, uuid: str) -> tuple[int, int]:
        """Return the pod's compute (percent) and memory (bytes) on this GPU."""
        return ledger.held(self.entry, uuid)


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """Pods in the order of their moves, each to the place of the one before. promise: expected gain in GPUs.

    closed: GPUs that are cordoned until all pods have moved.
    """

    movers: tuple[Mover, ...]
    promise: float
    closed: tuple[tuple[str, str], ...] = ()  # node and UUID

    def rate(self, thrift: float) -> float:
        """Return the expected gain in GPUs: in total for a thrift of 0, per move for 1."""
        return self.promise / float(len(self.movers) ** thrift)


class Exchanges:
    """The chains of one world, at the prices when it was created. Needs numpy."""

    def __init__(self, world: World, may_leave: MayLeave) -> None:
        self._world = world
        self._may_leave = may_leave
        self.prices = world.engine.prices()
        self._vacancies = world.engine.vacancies(self.prices)
        self._shapes: dict[Shape, int] = {}
        self._slots: dict[str, int] = {}  # by allocation ID
        self._movers: dict[int, Mover] = {}
        self._on: dict[str, list[str]] = {}

    def refresh(self, names: Iterable[str]) -> None:
        """Read new and changed nodes."""
        for name in names:
            for identity in self._on.pop(name, ()):
                del self._movers[self._slots.pop(identity)]
                self._vacancies.drop(identity)
            view = self._world.views[name]
            usable = {gpu.uuid for gpu in view.node.gpus if gpu.takes_shares}
            self._on[name] = []
            for entry in view.node.allocations:
                mover = self._may_leave(entry) if usable.issuperset(entry.gpu_uuids) else None
                if mover is not None:
                    self._enter(view, entry, mover)

    def chains(self, waiting: Sequence[RequestingPod], most: int, *, worth: float = 1.0) -> list[Chain]:
        """Return the chains of at most `most` moves with an expected gain.

        Of chains with the same length and last pod, only the best is returned.
        """
        if not self._movers:
            return []
        first = {
            self._shape(asked.request, self._world.host(asked.manifest)): worth * asked.request_gpus
            for asked in waiting
        }
        slots = sorted(self._movers)
        movers = [self._movers[slot] for slot in slots]
        numbers = {name: number for number, name in enumerate(self._on)}
        paths = self._vacancies.chains(
            slots,
            [mover.shape for mover in movers],
            [numbers[mover.node] for mover in movers],
            shapes=[*self._shapes],
            values=self._world.engine.values([*numbers], self.prices),
            lowest=self.lowest(),
            waiting=first,
            most=min(most, MAX),
        )
        return [Chain(tuple(movers[at] for at in path), promise) for promise, path in paths]

    def movers(self) -> Iterator[tuple[str, list[Mover]]]:
        """Yield each node with its movable pods."""
        for name, identities in self._on.items():
            yield name, [self._movers[self._slots[identity]] for identity in identities]

    def lowest(self) -> list[float]:
        """Return [shape] the lowest cost of such a pod, in GPUs; infinite if it fits nowhere."""
        return [self._world.engine.lowest(request, host=host) for request, host in self._shapes]

    def _enter(self, view: NodeView, entry: Allocation, mover: RequestingPod) -> None:
        name = view.node.name
        left = tuple(allocation for allocation in view.node.allocations if allocation.id != entry.id)
        without = NodeView.from_node(dataclasses.replace(view.node, allocations=left))
        slot = self._vacancies.put(entry.id, without, self._world.room_without(name, mover.manifest))
        host = self._world.host(worlds.successor(mover.manifest))
        self._movers[slot] = Mover(name, entry, self._shape(mover.request, host), host)
        self._slots[entry.id] = slot
        self._on[name].append(entry.id)

    def _shape(self, request: Request, host: Host) -> int:
        return self._shapes.setdefault((request, host), len(self._shapes))


class Clearings:
    """The clearings of one world.

    The engine computes each gain with the pod removed, and again only after the node has changed.
    """

    def __init__(self, world: World, cpu_only_pods: CpuOnlyPods, prices: Any) -> None:
        self._world = world
        self._pods = cpu_only_pods
        self._prices = prices
        self._gains: dict[str, list[Chain]] = {}  # by node

    def refresh(self, names: Iterable[str]) -> None:
        """Read new and changed nodes."""
        for name in names:
            self._gains[name] = [*self._of(name)]

    def chains(self) -> list[Chain]:
        """Return the clearings with a gain."""
        return [chain for chains in self._gains.values() for chain in chains]

    def on(self, node: str) -> list[CpuOnlyPod]:
        """Return the movable CPU-only pods of a node."""
        return self._pods.on(node)

    def _of(self, name: str) -> Iterator[Chain]:
        there = self._pods.on(name)[:_MAX_CLEARED]
        now = self._value(name) if there else 0.0
        for known in there:
            undo = self._world.remove(known.manifest, name, known.entry)
            gain = self._value(name) - now
            undo()
            if gain > 0:
                yield Chain((Mover.from_cpu_only(known),), gain)

    def _value(self, name: str) -> float:
        return float(self._world.engine.values([name], self._prices).sum())


MAX_OPENING: Final = 6  # pods that leave together
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
            for way in node.ways(shape, min(most, MAX_OPENING)):
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
