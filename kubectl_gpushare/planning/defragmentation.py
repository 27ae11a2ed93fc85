"""Defragmentation: the fewest moves by which a share fits that does not fit now.

A plan counts only if it succeeds when played. The plan with the fewest moves wins, then the one that moves the least.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from gpushare import pod
from gpushare.fragmentation import Fragmentation
from gpushare.placement import Placement
from kubectl_gpushare.planning import evicting
from kubectl_gpushare.planning import world as worlds
from kubectl_gpushare.planning.evicting import Budgets
from kubectl_gpushare.planning.leaving import Movable
from kubectl_gpushare.planning.playing import Closed, Effort, Move, Player, Spent
from kubectl_gpushare.planning.world import RequestingPod, World


@dataclasses.dataclass(frozen=True, slots=True)
class DefragStep:
    """One share: the moves that make room for it, and where it goes then. `gpus` is empty if there is no way.

    asked: None for moves that admit no pod: they reduce fragmentation, or empty the GPUs of a node, `gpus`.
    """

    name: str
    asked: RequestingPod | None
    gpus: str
    moves: tuple[Move, ...] = ()
    reason: str = ""

    @property
    def closed(self) -> Closed:
        """The GPUs that are cordoned during some of the moves: node and UUID."""
        return tuple(dict.fromkeys(gpu for move in self.moves for gpu in move.closed))


@dataclasses.dataclass(frozen=True, slots=True)
class DefragPlan:
    """The steps in order; `fixed`: why pods that are in the way may not be moved, and how many.

    gained: by how many GPUs the moves raise the free part that the cluster's mix can use; None for plans that are not
    made by that.
    """

    steps: tuple[DefragStep, ...]
    before: Fragmentation
    after: Fragmentation
    fixed: tuple[tuple[str, int], ...]
    gained: float | None = None

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves of all steps, in order."""
        return tuple(move for step in self.steps for move in step.moves)


def plan(
    world: World, wanted: Sequence[tuple[str, RequestingPod]], budgets: Budgets, *, stay: bool = True
) -> DefragPlan:
    """Makes room for each of these in turn; leaves the world as the plan leaves it.

    stay: the shares belong to gated pods, which are placed and stay; otherwise only a hole is made.
    """
    before = world.fragmentation()
    steps: list[DefragStep] = []
    fixed: collections.Counter[str] = collections.Counter()
    spent: Spent = collections.Counter()
    effort = Effort()
    for name, asked in wanted:
        steps.append(_step(world, name, asked, budgets, spent, fixed, effort))
        spent.update(evicting.spend(budgets, [move.manifest for move in steps[-1].moves]))
        if steps[-1].gpus and stay:
            answer = world.place(asked.manifest, asked.request)
            if isinstance(answer, Placement):
                world.take(asked.manifest, asked.request, answer)
    return DefragPlan(tuple(steps), before, world.fragmentation(), tuple(fixed.most_common()))


def _step(
    world: World,
    name: str,
    asked: RequestingPod,
    budgets: Budgets,
    spent: Spent,
    fixed: collections.Counter[str],
    effort: Effort,
) -> DefragStep:
    answer = world.place(asked.manifest, asked.request)
    if isinstance(answer, Placement):
        return DefragStep(name, asked, worlds.gpus(answer, world.views))
    priority = pod.priority(asked.manifest) if pod.uid(asked.manifest) else evicting.SYSTEM_PRIORITY
    room = Player(world, budgets, spent, Movable(world, budgets, priority, fixed), effort).room(asked)
    if room is None:
        return DefragStep(name, asked, "", reason=str(answer))
    moves, gpus = room
    return DefragStep(name, asked, gpus, moves)
