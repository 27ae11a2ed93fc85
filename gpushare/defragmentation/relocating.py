"""Relocating: the moves that raise the cluster's value most: its free capacity, and the gated pods that they admit.

Free capacity has the value that the policy `fragmentation` gives it, by the cluster's own mix. The engine's arrays give
the value of each node without one of its pods, and the cost of every other pod there; from these follow chains of moves
that promise a gain. Promising chains are simulated as they would happen: one pod after another, each placed by the
webhook's engine while its old GPUs are cordoned; gated pods that fit are admitted at once. Only the simulated result
counts. The chain with the highest gain per move is taken, and the nodes that it changed are read again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpushare import isolation, pod
from gpushare.defragmentation import evicting, leaving
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import Departure, Movable, Mover, Shape
from gpushare.defragmentation.moves import DefragPlan, DefragStep, Move, MoveSimulator, Waiting
from gpushare.placement import NodeView
from gpushare.whatif.world import World

MIN_GAIN = 0.02  # GPUs per move: a smaller gain is not worth a move
_ADMITTED: Final = 2.0  # the value of a GPU given to a gated pod; a free GPU is worth 1
_MAX_EXCHANGE: Final = 4  # moves
_MAX_OPENING: Final = 6  # pods that leave together
_MAX_CLEARED: Final = 4  # CPU-only pods per node that are considered, those with the most CPU
_MAX_SIMULATED: Final = 8  # most promising chains to simulate before one is taken
_MAX_FAILED: Final = 200  # consecutive failed simulations before the search ends
# Chains are ranked by gain per move (1) or total gain (0). All of these are tried, because starting places are few, and
# a short chain may use up the one that a longer chain needs.
_THRIFT: Final = (0.0, 0.5, 1.0)  # ties go to the last
_SAME: Final = 1e-9


def plan(
    world: World, waiting: Waiting, budgets: Budgets, *, max_moves: int, moves_cpu_only: bool = False
) -> DefragPlan:
    """Plan at most `max_moves` moves, and the gated pods that they admit; the world is left as the plan leaves it.

    moves_cpu_only: CPU-only pods may be moved, too.
    """

    def planner(thrift: float) -> _Planner:
        return _Planner(Movable(world, budgets, with_cpu_only=moves_cpu_only), waiting, thrift)

    best, best_thrift = 0.0, _THRIFT[-1]
    for thrift in _THRIFT:
        tried = planner(thrift)
        made = tried.make(max_moves)
        gained = made.gained or 0.0
        if gained > best - _SAME:
            best, best_thrift = gained, thrift
            if thrift == _THRIFT[-1]:
                return made
        tried.simulator.undo()
    return planner(best_thrift).make(max_moves)


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """Departures in order. promise: expected gain in GPUs."""

    departures: tuple[Departure, ...]
    promise: float

    @property
    def ids(self) -> tuple[str, ...]:
        """The IDs of the allocations that move."""
        return tuple(mover.entry.id for departure in self.departures for mover in departure.leaving)


class Chains:
    """The chains of one world, at the prices when it was created.

    In an exchange each pod takes the place of the next, and the last one moves to free capacity. It begins with a gated
    pod, or with a pod that leaves its place empty. In a clearing one CPU-only pod leaves a node whose GPUs are worth
    more without it. In an opening several pods leave one node before a gated pod takes their place; their GPUs are
    cordoned until all have left, so that no other pod takes the capacity.
    """

    def __init__(self, movable: Movable) -> None:
        self._world = movable.world
        self._movable = movable
        self._prices = self._world.engine.prices()
        self._vacancies = self._world.engine.vacancies(self._prices)
        self._shapes: dict[Shape, int] = {}
        self._movers: dict[int, tuple[Mover, int]] = {}  # pod and its shape, by slot of the node without it
        self._clearings: list[Chain] = []

    def worth(self, names: Sequence[str]) -> float:
        """Return the value of these nodes, in GPUs."""
        return float(self._world.engine.values(names, self._prices).sum())

    def refresh(self, names: Collection[str]) -> None:
        """Read new and changed nodes."""
        for slot, (mover, _) in [*self._movers.items()]:
            if mover.node in names:
                self._vacancies.drop(mover.entry.id)
                del self._movers[slot]
        self._clearings = [chain for chain in self._clearings if chain.departures[0].node not in names]
        for name in names:
            self._vacate(name)
            self._clearings += self._cleared(name)

    def exchanges(self, waiting: Mapping[Shape, float], most: int) -> list[Chain]:
        """Return the exchanges of at most `most` moves with an expected gain, and the clearings.

        Of exchanges with the same length and last pod, only the best is returned. waiting: GPUs of the gated pods.
        """
        slots = sorted(self._movers)
        if not slots:
            return self._clearings
        first = {self._number(shape): _ADMITTED * gpus for shape, gpus in waiting.items()}
        movers = [self._movers[slot][0] for slot in slots]
        nodes = {name: number for number, name in enumerate(dict.fromkeys(mover.node for mover in movers))}
        paths = self._vacancies.chains(
            slots,
            [self._movers[slot][1] for slot in slots],
            [nodes[mover.node] for mover in movers],
            shapes=[self._variants(shape) for shape in self._shapes],
            values=self._world.engine.values([*nodes], self._prices),
            lowest=self._lowest(),
            waiting=first,
            most=min(most, _MAX_EXCHANGE),
        )
        exchanges = (Chain(tuple(_alone(movers[at]) for at in path), promise) for promise, path in paths)
        return [*exchanges, *self._clearings]

    def openings(self, waiting: Mapping[Shape, float], most: int) -> Iterator[Chain]:
        """Yield the openings of at most `most` moves for gated pods, the best one for each set of pods that leave."""
        by_shape = self._lowest()
        costs = {mover: by_shape[shape] for mover, shape in self._movers.values()}
        by_node: dict[str, list[Mover]] = {name: [] for name in self._world.usable()}
        for mover, lowest in costs.items():
            if lowest < math.inf:
                by_node[mover.node].append(mover)

        def cost(movers: Iterable[Mover]) -> float:
            return sum(costs.get(mover, 0.0) for mover in movers)  # CPU-only pods take no share

        for name, movers in by_node.items():
            best: dict[frozenset[Mover], Chain] = {}
            for shape, gpus in waiting.items():
                for way in leaving.departures(self._movable, name, shape, movers, min(most, _MAX_OPENING), cost=cost):
                    freed = sum(mover.percent for mover in way.leaving) / 100 - cost(way.leaving)
                    chain = Chain((way,), (_ADMITTED - 1) * gpus + freed)
                    known = best.get(frozenset(way.leaving))
                    if chain.promise > (known.promise if known else 0):
                        best[frozenset(way.leaving)] = chain
            yield from best.values()

    def _lowest(self) -> list[float]:
        """Return [shape] the lowest cost of such a pod, in GPUs; infinite if it fits nowhere."""
        lowest = self._world.engine.lowest
        return [min(lowest(request, host=host) for request, host in self._variants(shape)) for shape in self._shapes]

    def _variants(self, shape: Shape) -> list[Shape]:
        request, host = shape
        return [(variant, host) for variant in isolation.variants(request, self._world.profile.isolation)]

    def _vacate(self, name: str) -> None:
        view = self._world.views[name]
        usable = {gpu.uuid for gpu in view.node.gpus if gpu.takes_shares}
        for mover in self._movable.on(name):
            if usable.issuperset(mover.entry.gpu_uuids):
                rest = tuple(entry for entry in view.node.allocations if entry.id != mover.entry.id)
                without = NodeView.from_node(dataclasses.replace(view.node, allocations=rest))
                slot = self._vacancies.put(mover.entry.id, without, self._world.room_without(name, mover.host))
                self._movers[slot] = mover, self._number((mover.fresh.request, mover.host))

    def _cleared(self, name: str) -> Iterator[Chain]:
        there = self._movable.cpu_only(name)[:_MAX_CLEARED]
        now = self.worth([name]) if there else 0.0
        for mover in there:
            undo = self._world.remove(mover.manifest, name, mover.entry)
            gain = self.worth([name]) - now
            undo()
            if gain > 0:
                yield Chain((_alone(mover),), gain)

    def _number(self, shape: Shape) -> int:
        return self._shapes.setdefault(shape, len(self._shapes))


def _alone(mover: Mover) -> Departure:
    return Departure(mover.node, mover.entry.gpu_uuids, (mover,))


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """A simulated chain. gain: of all its moves, in GPUs; admitted: the GPUs of each admitted pod."""

    chain: Chain
    gain: float
    moves: tuple[Move, ...]
    admitted: Mapping[str, str]


class _Planner:
    def __init__(self, movable: Movable, waiting: Waiting, thrift: float) -> None:
        self._world = movable.world
        self._movable = movable
        self._thrift = thrift
        self._waiting = dict(waiting)
        self._shapes = {name: (asked.request, self._world.host(asked.manifest)) for name, asked in waiting}
        self.simulator = MoveSimulator(movable)
        self._chains = Chains(movable)
        self._failed: set[tuple[tuple[str, ...], str]] = set()  # IDs of the chain's allocations, and its promise

    def make(self, max_moves: int) -> DefragPlan:
        before, gained, left = self._world.fragmentation(), 0.0, max_moves
        steps: list[DefragStep] = []
        moves: list[Move] = []
        self._chains.refresh(self._world.usable())
        while left > 0 and (best := self._best(left)) is not None:
            self._simulate(best.chain)
            left -= len(best.moves)
            gained += best.gain
            moves += best.moves
            changed = {node for move in best.moves for node in move.nodes}
            for name, where in best.admitted.items():
                steps.append(DefragStep(name, self._waiting.pop(name), where, tuple(moves)))
                moves = []
                changed.add(where.partition("/")[0])
            self._chains.refresh(changed.intersection(self._world.views))
        if moves:
            steps.append(DefragStep("", None, "", tuple(moves)))
        for name, asked in self._waiting.items():
            steps.append(DefragStep(name, asked, "", reason=str(self._world.place(asked.manifest, asked.request))))
        return DefragPlan(tuple(steps), before, self._world.fragmentation(), self._movable.fixed, gained)

    def _best(self, most: int) -> _Outcome | None:
        """Return the best exchange, or else the best opening."""
        waiting = {self._shapes[name]: asked.request_gpus for name, asked in self._waiting.items()}
        return self._tried(self._chains.exchanges(waiting, most)) or self._tried(self._chains.openings(waiting, most))

    def _rate(self, gain: float, moves: Sequence[object]) -> float:
        """Return the gain in GPUs: in total for a thrift of 0, per move for 1."""
        return gain / float(len(moves) ** self._thrift)

    def _tried(self, chains: Iterable[Chain]) -> _Outcome | None:
        """Simulate the most promising chains and return the best outcome; None if none gains enough."""
        best: _Outcome | None = None
        highest, simulated, failed = 0.0, 0, 0
        for chain in sorted(chains, key=lambda chain: (-self._rate(chain.promise, chain.ids), chain.ids)):
            is_enough = failed > _MAX_FAILED or (best and simulated >= _MAX_SIMULATED)
            if is_enough or self._rate(chain.promise, chain.ids) < highest:
                break
            key = chain.ids, f"{chain.promise:.2f}"
            if key in self._failed:
                continue
            mark = self.simulator.mark
            outcome = self._simulate(chain)
            self.simulator.undo(mark)
            simulated += 1
            if outcome is None:
                failed += 1
                self._failed.add(key)
            elif best is None or self._rate(outcome.gain, outcome.moves) > highest:
                best, highest = outcome, self._rate(outcome.gain, outcome.moves)
        return best

    def _simulate(self, chain: Chain) -> _Outcome | None:
        """Simulate the chain up to the point of its highest gain; None if it gains too little everywhere.

        No pod is moved for pods of a lower priority. A gated pod may take the place meant for the chain's next pod, and
        the chain ends there.
        """
        before = self._chains.worth(self._world.usable())
        moves: tuple[Move, ...] = ()
        admitted: dict[str, str] = {}
        best: _Outcome | None = None
        for number, departure in enumerate(chain.departures, 1):
            moved = self.simulator.leave(departure)
            if moved is None:
                break
            moves += moved
            self._admit(admitted)
            let_in = [self._waiting[name] for name in admitted]
            lowest = min((pod.priority(asked.manifest) for asked in let_in), default=evicting.SYSTEM_PRIORITY)
            gain = self._chains.worth(self._world.usable()) - before
            gain += _ADMITTED * sum(asked.request_gpus for asked in let_in)
            if gain < MIN_GAIN * len(moves) or any(pod.priority(move.manifest) > lowest for move in moves):
                continue
            if best is None or self._rate(gain, moves) > self._rate(best.gain, best.moves):
                part = dataclasses.replace(chain, departures=chain.departures[:number])
                best = _Outcome(part, gain, moves, {**admitted})
        return best

    def _admit(self, admitted: dict[str, str]) -> None:
        """Admit the waiting pods that fit now, in their order, and add their GPUs to `admitted`."""
        fits: dict[Shape, bool] = {}
        for name, asked in self._waiting.items():
            if name in admitted:
                continue
            shape = self._shapes[name]
            if shape not in fits:
                variants = isolation.variants(shape[0], self._world.profile.isolation)
                fits[shape] = any(self._world.engine.lowest(each, host=shape[1]) < math.inf for each in variants)
            if fits[shape] and (where := self.simulator.admit(asked)):
                fits.clear()
                admitted[name] = where
