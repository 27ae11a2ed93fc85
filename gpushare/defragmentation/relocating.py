"""Relocating: the moves that raise the value of the cluster most: its free capacity, and the pods it admits.

Free capacity has the value that the policy `fragmentation` gives it, by the cluster's own mix. Promising chains of
moves are played as they would be made: one pod after the other, each placed by the webhook's engine while its old GPUs
are cordoned; gated pods that fit are admitted at once. Only the played result counts. The chain with the highest gain
per move is taken; then the nodes that it changed are read again. Where no chain gains, openings are played: several
pods that leave one node before a gated pod comes. CPU-only pods take part where they may be moved.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from gpushare import pod
from gpushare.defragmentation import evicting
from gpushare.defragmentation.cpu_only import CpuOnlyPods
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.exchanges import Chain, Clearings, Exchanges, Shape
from gpushare.defragmentation.leaving import Movable
from gpushare.defragmentation.openings import Openings
from gpushare.defragmentation.plan import DefragPlan, DefragStep, Move
from gpushare.defragmentation.playing import Effort, Player, Spent
from gpushare.whatif.world import RequestingPod, World

MIN_GAIN = 0.02  # GPUs per move: a smaller gain is not worth a move
LET_IN = 2.0  # the value of a GPU given to a gated pod, where a free GPU is worth 1
_PLAYED = 8  # most promising chains that are played before one is taken
_FAILED = 200  # chains in a row that fail when played, before the search ends
# What counts when a chain is taken: its gain per move (1), or all of its gain (0). All are tried: places to begin with
# are few, and a short chain may use up the one that a longer one needs.
_THRIFT = (0.0, 0.5, 1.0)  # of equally good plans the last is taken
_SAME = 1e-9
Waiting = Sequence[tuple[str, RequestingPod]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Played:
    """A chain that was played. gain: of all its moves, in GPUs; admitted: number and GPUs of each admitted pod."""

    chain: Chain
    gain: float
    moves: tuple[Move, ...]
    admitted: tuple[tuple[int, str], ...]

    def rate(self, thrift: float) -> float:
        """What it gains in GPUs: all of it at a thrift of 0, per move at 1."""
        return self.gain / float(len(self.moves) ** thrift)


def plan(
    world: World,
    waiting: Waiting,
    budgets: Budgets,
    *,
    max_moves: int,
    min_gain: float = MIN_GAIN,
    moves_cpu_only: bool = False,
) -> DefragPlan:
    """At most `max_moves` moves, and the gated pods that they admit; leaves the world as the plan leaves it.

    min_gain: GPUs per move, of each chain of moves. moves_cpu_only: CPU-only pods may be moved, too.

    Needs numpy (`worlds.exact`).
    """
    best, best_thrift = 0.0, _THRIFT[-1]
    for thrift in _THRIFT:
        tried = _Plan(world, waiting, budgets, thrift, min_gain, moves_cpu_only=moves_cpu_only)
        made = tried.make(max_moves)
        gained = made.gained or 0.0
        if gained > best - _SAME:
            best, best_thrift = gained, thrift
            if thrift == _THRIFT[-1]:
                return made
        tried.take_back()
    return _Plan(world, waiting, budgets, best_thrift, min_gain, moves_cpu_only=moves_cpu_only).make(max_moves)


class _Plan:
    def __init__(
        self,
        world: World,
        waiting: Waiting,
        budgets: Budgets,
        thrift: float,
        min_gain: float,
        *,
        moves_cpu_only: bool,
    ) -> None:
        self._world = world
        self._thrift = thrift
        self._min_gain = min_gain
        self._players: list[Player] = []
        self._budgets = budgets
        self._waiting = dict(enumerate(waiting))
        self._shapes = {
            number: (asked.request, world.host(asked.manifest)) for number, (_, asked) in self._waiting.items()
        }
        self._spent: Spent = collections.Counter()
        self._fixed: collections.Counter[str] = collections.Counter()
        self._may_leave = Movable(world, budgets, evicting.SYSTEM_PRIORITY, self._fixed)
        self._exchanges = Exchanges(world, self._may_leave)
        self._clearings: Clearings | None = None
        if moves_cpu_only:
            self._clearings = Clearings(world, CpuOnlyPods(world, self._may_leave), self._exchanges.prices)
        self._openings = Openings(world, self._exchanges, self._clearings)
        self._failed: set[tuple[str, ...]] = set()  # ids of the chain's allocations, and its promise

    def make(self, max_moves: int) -> DefragPlan:
        before, gained, left = self._world.fragmentation(), 0.0, max_moves
        steps: list[DefragStep] = []
        moves: list[Move] = []
        self._look(self._world.usable())
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
        """The best chain; where there is none, the best opening."""
        waiting = [asked for _, asked in self._waiting.values()]
        chains = self._exchanges.chains(waiting, most, worth=LET_IN)
        best = self._tried([*chains, *self._clearings.chains()] if self._clearings else chains)
        if best is None:
            shapes = (self._shapes[number] for number in self._waiting)
            best = self._tried(self._openings.chains(shapes, most, worth=LET_IN))
        return best

    def _tried(self, chains: Iterable[Chain]) -> _Played | None:
        """The best of the most promising chains, played; None if none gains enough."""
        best: _Played | None = None
        played = failed = 0
        thrift = self._thrift
        for chain in sorted(
            chains, key=lambda candidate: (-candidate.rate(thrift), [mover.entry.id for mover in candidate.movers])
        ):
            if chain.rate(thrift) < (best.rate(thrift) if best else 0.0) or (best and played >= _PLAYED):
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
            if outcome is None:
                failed += 1
                self._failed.add(key)
            elif best is None or outcome.rate(thrift) > best.rate(thrift):
                best = outcome
        return best

    def _play(self, player: Player, chain: Chain) -> _Played | None:
        """The chain as it would be made, up to where it gains most; None if it gains nothing that is allowed.

        Who waits may take a place that was meant for the next of the chain, which then ends there.
        """
        before = self._worth()
        moves: list[Move] = []
        admitted: list[tuple[int, str]] = []
        best: _Played | None = None
        player.close(chain.closed)
        for mover in chain.movers:
            move = player.relocate(mover.node, mover.entry, chain.closed)
            if move is None:
                break
            moves.append(move)
            is_last = mover is chain.movers[-1]
            if is_last:
                player.close(chain.closed, cordoned=False)
            admitted += self._admit(player, {number for number, _ in admitted})
            if is_last or not chain.closed:
                part = dataclasses.replace(chain, movers=chain.movers[: len(moves)])
                now = self._gained(part, before, moves, admitted)
                if now and (best is None or now.rate(self._thrift) > best.rate(self._thrift)):
                    best = now
        return best

    def _gained(
        self, chain: Chain, before: float, moves: Sequence[Move], admitted: Sequence[tuple[int, str]]
    ) -> _Played | None:
        """What it has come to; None if it gains too little, or moves a pod of higher priority than one it admits."""
        let_in = [self._waiting[number][1] for number, _ in admitted]
        least = min((pod.priority(asked.manifest) for asked in let_in), default=evicting.SYSTEM_PRIORITY)
        if any(pod.priority(move.manifest) > least for move in moves):
            return None
        gain = self._worth() - before + LET_IN * sum(asked.request_gpus for asked in let_in)
        return _Played(chain, gain, tuple(moves), tuple(admitted)) if gain >= self._min_gain * len(moves) else None

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
        self._players.append(self._player())
        self._play(self._players[-1], best.chain)
        self._spent.update(evicting.spend(self._budgets, [move.manifest for move in best.moves]))
        changed = {node for move in best.moves for node in move.nodes}
        changed.update(where.rpartition("/")[0] for _, where in best.admitted)
        self._look(changed.intersection(self._world.views))
        return [(*self._waiting.pop(number), where) for number, where in best.admitted]

    def _look(self, names: Collection[str]) -> None:
        """Reads nodes that are new or have changed."""
        self._exchanges.look(names)
        if self._clearings is not None:
            self._clearings.look(names)

    def take_back(self) -> None:
        """Leaves the world as it was."""
        for player in reversed(self._players):
            player.take_back()

    def _worth(self) -> float:
        return float(self._world.engine.values(self._world.usable(), self._exchanges.prices).sum())

    def _player(self) -> Player:
        return Player(self._world, self._budgets, self._spent, self._may_leave, Effort())
