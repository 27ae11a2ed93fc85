"""Exchanges: chains of moves in which each pod takes the place of the next, and the last one moves to free capacity.

A chain begins with a gated pod, or with a pod that leaves its place empty. Its expected gain follows from the engine's
arrays: the value of each node without one of its pods, and the cost of every other pod there. A clearing is a chain of
one CPU-only pod that leaves a node whose GPUs are worth more without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from gpushare import ledger
from gpushare.allocation import Allocation
from gpushare.defragmentation.cpu_only import CpuOnlyPod, CpuOnlyPods
from gpushare.defragmentation.leaving import MayLeave
from gpushare.mix import Host
from gpushare.placement import NodeView
from gpushare.request import Request
from gpushare.whatif import unplaced
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
        host = self._world.host(unplaced.successor(mover.manifest))
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
