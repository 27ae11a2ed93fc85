"""Relocating: the moves that raise the cluster's value most: its free capacity, and the gated pods that they admit.

Free capacity has the value that the policy `fragmentation` gives it, by the cluster's own mix. Promising chains are
simulated as they would happen: one pod after another, each placed by the webhook's engine while its old GPUs are
cordoned; gated pods that fit are admitted at once. Only the simulated result counts. The chain with the highest gain
per move is taken, and the nodes that it changed are read again. If no exchange gains, openings are simulated.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from gpushare import isolation, pod
from gpushare.defragmentation import evicting
from gpushare.defragmentation.chains import Chain, Chains, Shape
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import Movable
from gpushare.defragmentation.moves import DefragPlan, DefragStep, Move, MoveSimulator
from gpushare.whatif.world import RequestingPod, World

MIN_GAIN = 0.02  # GPUs per move: a smaller gain is not worth a move
LET_IN = 2.0  # the value of a GPU given to a gated pod; a free GPU is worth 1
_MAX_SIMULATED = 8  # most promising chains to simulate before one is taken
_MAX_FAILED = 200  # consecutive failed simulations before the search ends
# Chains are ranked by gain per move (1) or total gain (0). All of these are tried, because starting places are few, and
# a short chain may use up the one that a longer chain needs.
_THRIFT = (0.0, 0.5, 1.0)  # ties go to the last
_SAME = 1e-9
Waiting = Sequence[tuple[str, RequestingPod]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """A simulated chain. gain: of all its moves, in GPUs; admitted: number and GPUs of each admitted pod."""

    chain: Chain
    gain: float
    moves: tuple[Move, ...]
    admitted: tuple[tuple[int, str], ...]


def plan(
    world: World, waiting: Waiting, budgets: Budgets, *, max_moves: int, moves_cpu_only: bool = False
) -> DefragPlan:
    """Plan at most `max_moves` moves, and the gated pods that they admit; the world is left as the plan leaves it.

    moves_cpu_only: CPU-only pods may be moved, too. Needs numpy.
    """
    best, best_thrift = 0.0, _THRIFT[-1]
    for thrift in _THRIFT:
        tried = _Plan(world, waiting, thrift, Movable(world, budgets, moves_cpu_only=moves_cpu_only))
        made = tried.make(max_moves)
        gained = made.gained or 0.0
        if gained > best - _SAME:
            best, best_thrift = gained, thrift
            if thrift == _THRIFT[-1]:
                return made
        tried.simulator.undo()
    again = _Plan(world, waiting, best_thrift, Movable(world, budgets, moves_cpu_only=moves_cpu_only))
    return again.make(max_moves)


class _Plan:
    def __init__(self, world: World, waiting: Waiting, thrift: float, may_leave: Movable) -> None:
        self._world = world
        self._thrift = thrift
        self._waiting = dict(enumerate(waiting))
        self._shapes = {
            number: (asked.request, world.host(asked.manifest)) for number, (_, asked) in self._waiting.items()
        }
        self._may_leave = may_leave
        self.simulator = MoveSimulator(world, may_leave)
        self._chains = Chains(world, may_leave)
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
            for number, where in best.admitted:
                steps.append(DefragStep(*self._waiting.pop(number), where, tuple(moves)))
                moves = []
                changed.add(where.rpartition("/")[0])
            self._chains.refresh(changed.intersection(self._world.views))
        if moves:
            steps.append(DefragStep("", None, "", tuple(moves)))
        for name, asked in self._waiting.values():
            steps.append(DefragStep(name, asked, "", reason=str(self._world.place(asked.manifest, asked.request))))
        fixed = tuple(self._may_leave.fixed.most_common())
        return DefragPlan(tuple(steps), before, self._world.fragmentation(), fixed, gained)

    def _best(self, most: int) -> _Outcome | None:
        """Return the best exchange, or else the best opening."""
        waiting = [asked for _, asked in self._waiting.values()]
        best = self._tried(self._chains.exchanges(waiting, most, worth=LET_IN))
        if best is None:
            shapes = (self._shapes[number] for number in self._waiting)
            best = self._tried(self._chains.openings(shapes, most, worth=LET_IN))
        return best

    def _rate(self, gain: float, moves: Sequence[object]) -> float:
        """Return the gain in GPUs: in total for a thrift of 0, per move for 1."""
        return gain / float(len(moves) ** self._thrift)

    def _tried(self, chains: Iterable[Chain]) -> _Outcome | None:
        """Simulate the most promising chains and return the best outcome; None if none gains enough."""
        best: _Outcome | None = None
        highest, simulated, failed = 0.0, 0, 0
        for chain in sorted(chains, key=lambda chain: (-self._rate(chain.promise, chain.movers), chain.ids)):
            is_enough = failed > _MAX_FAILED or (best and simulated >= _MAX_SIMULATED)
            if is_enough or self._rate(chain.promise, chain.movers) < highest:
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
        moves: list[Move] = []
        admitted: list[tuple[int, str]] = []
        best: _Outcome | None = None
        self.simulator.cordon(chain.closed, cordoned=True)
        for mover in chain.movers:
            if (move := self.simulator.relocate(mover, chain.closed)) is None:
                break
            moves.append(move)
            is_last = mover is chain.movers[-1]
            if is_last:
                self.simulator.cordon(chain.closed, cordoned=False)
            admitted += self._admit({number for number, _ in admitted})
            if is_last or not chain.closed:
                part = dataclasses.replace(chain, movers=chain.movers[: len(moves)])
                let_in = [self._waiting[number][1] for number, _ in admitted]
                least = min((pod.priority(asked.manifest) for asked in let_in), default=evicting.SYSTEM_PRIORITY)
                gain = self._chains.worth(self._world.usable()) - before
                gain += LET_IN * sum(asked.request_gpus for asked in let_in)
                if gain < MIN_GAIN * len(moves) or any(pod.priority(move.manifest) > least for move in moves):
                    continue
                if self._rate(gain, moves) > (self._rate(best.gain, best.moves) if best else -math.inf):
                    best = _Outcome(part, gain, tuple(moves), tuple(admitted))
        return best

    def _admit(self, there: Collection[int]) -> Iterator[tuple[int, str]]:
        """Admit the waiting pods that fit now and are not in `there`, in their order; yield their numbers and GPUs."""
        fits: dict[Shape, bool] = {}
        for number, (_, asked) in self._waiting.items():
            if number in there:
                continue
            shape = self._shapes[number]
            if shape not in fits:
                variants = isolation.variants(shape[0], self._world.profile.isolation)
                fits[shape] = any(self._world.engine.lowest(each, host=shape[1]) < math.inf for each in variants)
            if fits[shape] and (where := self.simulator.admit(asked)):
                fits.clear()
                yield number, where
