"""Emptying: frees as many nodes as possible of all shares, so that they can be removed.

The nodes with the fewest pods come first. A node is emptied only if all its pods fit on nodes that are in use; it and
the nodes emptied before take nothing new meanwhile. Otherwise it stays as it is.
"""

from __future__ import annotations

import collections

from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import Movable
from gpushare.defragmentation.plan import DefragPlan, DefragStep
from gpushare.defragmentation.playing import Closed, Effort, Player, Spent
from gpushare.whatif.world import World


def plan(world: World, budgets: Budgets, *, most: int) -> DefragPlan:
    """The plan, of at most `most` moves, with a step per node; leaves the world as the plan leaves it."""
    before = world.fragmentation()
    fixed: collections.Counter[str] = collections.Counter()
    may_leave = Movable(world, budgets, evicting.SYSTEM_PRIORITY, fixed)
    spent: Spent = collections.Counter()
    steps: list[DefragStep] = []
    kept: Closed = ()
    for name in _fewest_pods_first(world):
        view = world.views[name]
        there = view.node.allocations
        if len(there) > most or not all(map(may_leave, there)):
            continue
        empty = {other for other in world.usable() if not world.views[other].node.allocations}
        closed = (*kept, *((name, gpu.uuid) for gpu in view.node.gpus if gpu.takes_shares))
        player = Player(world, budgets, spent, may_leave, Effort())
        moves = player.vacate(name, closed)
        if moves is None or any(move.after.rpartition("/")[0] in empty for move in moves):
            player.take_back()
            continue
        most -= len(moves)
        spent.update(evicting.spend(budgets, [move.manifest for move in moves]))
        kept = closed
        steps.append(DefragStep(name, None, f"{name}/" + ",".join(str(gpu.index) for gpu in view.node.gpus), moves))
    return DefragPlan(tuple(steps), before, world.fragmentation(), tuple(fixed.most_common()))


def _fewest_pods_first(world: World) -> list[str]:
    """The nodes with allocations, those with the fewest first, then by compute."""

    def cost(name: str) -> tuple[int, int, str]:
        view = world.views[name]
        return len(view.node.allocations), sum(used.request_percent for used in view.used.values()), name

    return sorted((name for name in world.usable() if world.views[name].node.allocations), key=cost)
