"""Chains of moves that promise to raise the value of the cluster.

In an exchange each pod takes the place of the next, and the last one moves to free capacity. It begins with a gated
pod, or with a pod that leaves its place empty. A clearing is a chain of one CPU-only pod that leaves a node whose GPUs
are worth more without it. In an opening several pods leave one node before a gated pod takes their place; their GPUs
are cordoned until all have left, so that no other pod takes the capacity. The promises follow from the engine's arrays:
the value of each node without one of its pods, and the cost of every other pod there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpushare import isolation
from gpushare.defragmentation import leaving
from gpushare.defragmentation.leaving import Movable, Mover
from gpushare.mix import Host
from gpushare.placement import NodeView
from gpushare.request import Request
from gpushare.whatif.world import RequestingPod, World

_MAX: Final = 4  # moves in an exchange
_MAX_OPENING: Final = 6  # pods that leave together
_MAX_CLEARED: Final = 4  # CPU-only pods per node that are considered, those with the most CPU
Shape = tuple[Request, Host]


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """Pods in the order of their moves. promise: expected gain in GPUs.

    closed: node and UUID of GPUs that are cordoned until all pods have moved.
    """

    movers: tuple[Mover, ...]
    promise: float
    closed: tuple[tuple[str, str], ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of the pods' allocations."""
        return tuple(mover.entry.id for mover in self.movers)


class Chains:
    """The chains of one world, at the prices when it was created. Needs numpy."""

    def __init__(self, world: World, may_leave: Movable) -> None:
        self._world = world
        self._may_leave = may_leave
        self._prices = world.engine.prices()
        self._vacancies = world.engine.vacancies(self._prices)
        self._shapes: dict[Shape, int] = {}
        self._movers: dict[str, dict[int, Mover]] = {}  # node -> slot of the node without the pod -> pod
        self._clearings: dict[str, list[Chain]] = {}

    def worth(self, names: Sequence[str]) -> float:
        """Return the value of these nodes, in GPUs."""
        return float(self._world.engine.values(names, self._prices).sum())

    def refresh(self, names: Iterable[str]) -> None:
        """Read new and changed nodes."""
        for name in names:
            for mover in self._movers.pop(name, {}).values():
                self._vacancies.drop(mover.entry.id)
            self._movers[name] = dict(self._vacated(name))
            self._clearings[name] = [*self._cleared(name)]

    def exchanges(self, waiting: Sequence[RequestingPod], most: int, *, worth: float = 1.0) -> list[Chain]:
        """Return the exchanges of at most `most` moves with an expected gain, and the clearings.

        Of exchanges with the same length and last pod, only the best is returned. worth: of a GPU given to a gated pod.
        """
        clearings = [chain for chains in self._clearings.values() for chain in chains]
        movers = dict(sorted((slot, mover) for there in self._movers.values() for slot, mover in there.items()))
        if not movers:
            return clearings
        first = {
            self._shape(asked.request, self._world.host(asked.manifest)): worth * asked.request_gpus
            for asked in waiting
        }
        numbers = {name: number for number, name in enumerate(self._movers)}
        listed = [*movers.values()]
        paths = self._vacancies.chains(
            [*movers],
            [mover.shape for mover in listed],
            [numbers[mover.node] for mover in listed],
            shapes=[*self._shapes],
            values=self._world.engine.values([*numbers], self._prices),
            lowest=self._lowest(),
            waiting=first,
            most=min(most, _MAX),
        )
        return [*(Chain(tuple(listed[at] for at in path), promise) for promise, path in paths), *clearings]

    def openings(self, waiting: Iterable[Shape], most: int, *, worth: float) -> list[Chain]:
        """Return the openings of at most `most` moves for these shapes."""
        wanted = [shape for shape in dict.fromkeys(waiting) if len(shape[0].demands) == 1]
        costs = self._lowest()
        best: dict[tuple[str, ...], Chain] = {}
        for name, there in self._movers.items():
            movers = [dataclasses.replace(mover, cost=costs[mover.shape]) for mover in there.values()]
            movers = [mover for mover in movers if mover.cost < math.inf]
            for shape in wanted:
                demand = shape[0].demands[0]
                gain = (worth - 1) * demand.gpus * demand.share.request_percent / 100
                for way in leaving.departures(
                    self._world, self._may_leave, name, shape, movers, min(most, _MAX_OPENING)
                ):
                    leavers = tuple(sorted(way.leaving, key=lambda mover: -mover.size[0]))
                    freed = sum(mover.size[0] / 100 - mover.cost for mover in leavers)
                    chain = Chain(leavers, gain + freed, tuple((name, uuid) for uuid in way.uuids))
                    key = tuple(sorted(chain.ids))
                    if chain.promise > 0 and (key not in best or best[key].promise < chain.promise):
                        best[key] = chain
        return [*best.values()]

    def _lowest(self) -> list[float]:
        """Return [shape] the lowest cost of such a pod, in GPUs; infinite if it fits nowhere."""
        return [self._world.engine.lowest(request, host=host) for request, host in self._shapes]

    def _vacated(self, name: str) -> Iterator[tuple[int, Mover]]:
        view = self._world.views[name]
        usable = {gpu.uuid for gpu in view.node.gpus if gpu.takes_shares}
        for mover in self._may_leave.on(name):
            asked = self._may_leave(mover.entry)
            if asked is not None and usable.issuperset(mover.entry.gpu_uuids):
                rest = tuple(entry for entry in view.node.allocations if entry.id != mover.entry.id)
                without = NodeView.from_node(dataclasses.replace(view.node, allocations=rest))
                slot = self._vacancies.put(mover.entry.id, without, self._world.room_without(name, asked.manifest))
                yield slot, dataclasses.replace(mover, shape=self._shape(asked.request, mover.host))

    def _cleared(self, name: str) -> Iterator[Chain]:
        there = self._may_leave.cpu_only(name)[:_MAX_CLEARED]
        now = self.worth([name]) if there else 0.0
        for mover in there:
            undo = self._world.remove(self._world.manifest(mover.entry) or {}, name, mover.entry)
            gain = self.worth([name]) - now
            undo()
            if gain > 0:
                yield Chain((mover,), gain)

    def _shape(self, request: Request, host: Host) -> int:
        return self._shapes.setdefault(
            (isolation.variants(request, self._world.profile.isolation)[-1], host), len(self._shapes)
        )
