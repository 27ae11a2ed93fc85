"""Fewest moves: the fewest moves that make a share fit that does not fit now.

Only simulated plans count. The plan with the fewest moves wins, then the one that moves the least.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from gpushare import pod
from gpushare.defragmentation import evicting
from gpushare.defragmentation.cpu_only import CpuOnlyPods
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import Movable
from gpushare.defragmentation.move_simulator import Effort, MoveSimulator, Spent
from gpushare.defragmentation.plan import DefragPlan, DefragStep
from gpushare.placement import Placement
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World


def plan(
    world: World,
    wanted: Sequence[tuple[str, RequestingPod]],
    budgets: Budgets,
    *,
    stay: bool = True,
    moves_cpu_only: bool = False,
) -> DefragPlan:
    """Make room for each of these pods in turn; the world is left as the plan leaves it.

    stay: the pods are gated and get placed; otherwise the capacity stays free. moves_cpu_only: CPU-only pods may be
    moved, too.
    """
    before = world.fragmentation()
    steps: list[DefragStep] = []
    fixed: collections.Counter[str] = collections.Counter()
    spent: Spent = collections.Counter()
    effort = Effort()
    for name, asked in wanted:
        answer = world.place(asked.manifest, asked.request)
        if isinstance(answer, Placement):
            step = DefragStep(name, asked, worlds.gpus(answer, world.views))
        else:
            priority = pod.priority(asked.manifest) if pod.uid(asked.manifest) else evicting.SYSTEM_PRIORITY
            may_leave = Movable(world, budgets, priority, fixed)
            cpu_only_pods = CpuOnlyPods(world, may_leave) if moves_cpu_only else None
            room = MoveSimulator(world, budgets, spent, may_leave, effort, cpu_only_pods).room(asked)
            moves, gpus = room or ((), "")
            step = DefragStep(name, asked, gpus, moves, reason="" if gpus else str(answer))
        steps.append(step)
        spent.update(evicting.spend(budgets, [move.manifest for move in step.moves]))
        if step.gpus and stay:
            answer = world.place(asked.manifest, asked.request)
            if isinstance(answer, Placement):
                world.assign(asked.manifest, asked.request, answer)
    return DefragPlan(tuple(steps), before, world.fragmentation(), tuple(fixed.most_common()))
