"""Relocating: the moves that raise the value of the cluster most: its free capacity, and the pods it admits.

Free capacity has the value that the policy `fragmentation` gives it, by the cluster's own mix. Promising chains of
moves are played as they would be made: one pod after the other, each placed by the webhook's engine while its old GPUs
are cordoned; gated pods that fit are admitted at once. Only the played result counts. The chain with the highest gain
per move is taken; then the nodes that it changed are read again.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence

from gpushare import pod
from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.exchanges import Chain, Exchanges, Shape
from gpushare.defragmentation.leaving import Movable
from gpushare.defragmentation.plan import DefragPlan, DefragStep
from gpushare.defragmentation.playing import Effort, Move, Player, Spent
from gpushare.whatif.world import RequestingPod, World

LEAST_GAIN = 0.02  # GPUs per move: a smaller gain is not worth a move
LET_IN = 2.0  # the value of a GPU given to a gated pod, where a free GPU is worth 1
_PLAYED = 8  # most promising chains that are played before one is taken
_FAILED = 200  # chains in a row that fail when played, before the search ends
Waiting = Sequence[tuple[str, RequestingPod]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Played:
    """A chain that was played. gain: of all its moves, in GPUs; admitted: number and GPUs of each admitted pod."""

    chain: Chain
    gain: float
    moves: tuple[Move, ...]
    admitted: tuple[tuple[int, str], ...]

    @property
    def by_move(self) -> float:
        return self.gain / len(self.moves)


def plan(world: World, waiting: Waiting, budgets: Budgets, *, most: int) -> DefragPlan:
    """At most `most` moves, and the gated pods that they admit; leaves the world as the plan leaves it.

    Needs numpy (`worlds.exact`).
    """
    return _Plan(world, waiting, budgets).make(most)


class _Plan:
    def __init__(self, world: World, waiting: Waiting, budgets: Budgets) -> None:
        self._world = world
        self._budgets = budgets
        self._waiting = dict(enumerate(waiting))
        self._shapes = {
            number: (asked.request, world.host(asked.manifest)) for number, (_, asked) in self._waiting.items()
        }
        self._spent: Spent = collections.Counter()
        self._fixed: collections.Counter[str] = collections.Counter()
        self._may_leave = Movable(world, budgets, evicting.SYSTEM_PRIORITY, self._fixed)
        self._exchanges = Exchanges(world, self._may_leave)
        self._failed: set[tuple[str, ...]] = set()  # ids of the chain's allocations, and its promise

    def make(self, most: int) -> DefragPlan:
        before, gained, left = self._world.fragmentation(), 0.0, most
        steps: list[DefragStep] = []
        moves: list[Move] = []
        self._exchanges.look(self._world.usable())
        while left > 0:
            best = self._best(left)
            if best is None:
                break
            admitted = self._make(best)
            left -= len(best.moves)
            gained += best.gain
            moves += best.moves
            for name, asked, gpus in admitted:
                steps.append(DefragStep(name, asked, gpus, tuple(moves)))
                moves = []
        if moves:
            steps.append(DefragStep("", None, "", tuple(moves)))
        for name, asked in self._waiting.values():
            steps.append(DefragStep(name, asked, "", reason=str(self._world.place(asked.manifest, asked.request))))
        fixed = tuple(self._fixed.most_common())
        return DefragPlan(tuple(steps), before, self._world.fragmentation(), fixed, gained)

    def _best(self, most: int) -> _Played | None:
        """The best of the most promising chains, played; None if none gains enough."""
        best: _Played | None = None
        played = failed = 0
        for chain in self._exchanges.chains([asked for _, asked in self._waiting.values()], most, worth=LET_IN):
            if chain.by_move < max(LEAST_GAIN, best.by_move if best else 0.0) or (best and played >= _PLAYED):
                break
            if failed > _FAILED:
                break
            key = (*(mover.entry.id for mover in chain.movers), f"{chain.promise:.2f}")
            if key in self._failed:
                continue
            player = self._player()
            outcome = self._play(player, chain)
            player.take_back()
            played += 1
            if outcome is None or outcome.by_move < LEAST_GAIN:
                failed += 1
                self._failed.add(key)
            elif best is None or outcome.by_move > best.by_move:
                best = outcome
        return best

    def _play(self, player: Player, chain: Chain) -> _Played | None:
        """The chain as it would be made; None if a pod finds no place, or a pod of lower priority is admitted by it."""
        before = self._worth()
        moves: list[Move] = []
        admitted: list[tuple[int, str]] = []
        for mover in chain.movers:
            move = player.relocate(mover.node, mover.entry)
            if move is None:
                return None
            moves.append(move)
            admitted += self._admit(player, {number for number, _ in admitted})
        let_in = [self._waiting[number][1] for number, _ in admitted]
        least = min((pod.priority(asked.manifest) for asked in let_in), default=evicting.SYSTEM_PRIORITY)
        if any(pod.priority(move.manifest) > least for move in moves):
            return None
        gain = self._worth() - before + LET_IN * sum(asked.request_gpus for asked in let_in)
        return _Played(chain, gain, tuple(moves), tuple(admitted))

    def _admit(self, player: Player, there: Collection[int]) -> Iterator[tuple[int, str]]:
        """Admits the waiting pods that fit now and are not in `there`, in their order; their numbers and GPUs."""
        fits: dict[Shape, bool] = {}
        for number, (_, asked) in self._waiting.items():
            if number in there:
                continue
            shape = self._shapes[number]
            if shape not in fits:
                fits[shape] = self._world.engine.lowest(shape[0], host=shape[1]) < math.inf
            if fits[shape] and (where := player.admit(asked)):
                fits.clear()
                yield number, where

    def _make(self, best: _Played) -> list[tuple[str, RequestingPod, str]]:
        """Applies the chain to the world; name, request and GPUs of the admitted pods."""
        self._play(self._player(), best.chain)
        self._spent.update(evicting.spend(self._budgets, [move.manifest for move in best.moves]))
        changed = {mover.node for mover in best.chain.movers}
        changed.update(move.after.rpartition("/")[0] for move in best.moves)
        changed.update(where.rpartition("/")[0] for _, where in best.admitted)
        self._exchanges.look(changed)
        return [(*self._waiting.pop(number), where) for number, where in best.admitted]

    def _worth(self) -> float:
        return float(self._world.engine.values(self._world.usable(), self._exchanges.prices).sum())

    def _player(self) -> Player:
        return Player(self._world, self._budgets, self._spent, self._may_leave, Effort())
