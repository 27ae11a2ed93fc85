"""Goals: plans that make room for given pods with the fewest moves, free the largest hole, or empty nodes."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

from gpushare import contract, errors, pod, quantity
from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import CpuOnlyPods, Movable
from gpushare.defragmentation.moves import Closed, DefragPlan, DefragStep, Effort, MoveSimulator, Spent
from gpushare.placement import Placement
from gpushare.refusal import Refusal
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World


def make_room(
    world: World,
    wanted: Sequence[tuple[str, RequestingPod]],
    budgets: Budgets,
    *,
    stay: bool = True,
    moves_cpu_only: bool = False,
) -> DefragPlan:
    """Make room for each of these pods in turn; the world is left as the make_room leaves it.

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


_HOLES = (100, 75, 50, 25)  # percent of a GPU, compute and memory


def waiting(world: World, manifests: Iterable[pod.PodJson]) -> list[tuple[str, RequestingPod]]:
    """Return the gated pods that fit nowhere now, by priority, then age."""
    queue = []
    for manifest in manifests:
        if contract.SCHEDULING_GATE not in pod.gates(manifest) or len(pod.gates(manifest)) > 1:
            continue
        try:
            asked = RequestingPod.from_manifest(manifest)
        except errors.RequestError:
            continue
        if asked.request.group_size < 2 and isinstance(world.place(manifest, asked.request), Refusal):
            created = str((manifest.get("metadata") or {}).get("creationTimestamp") or "")
            queue.append((-pod.priority(manifest), created, "/".join(pod.namespaced_name(manifest)), asked))
    return [(name, asked) for _, _, name, asked in sorted(queue, key=lambda entry: entry[:3])]


def pointless(manifest: pod.PodJson, asked: RequestingPod) -> str:
    """Return why moves cannot help the pod, as a sentence, or an empty string."""
    name, annotations = "/".join(pod.namespaced_name(manifest)), pod.annotations_of(manifest)
    if contract.ALLOCATION in annotations:
        return f"pod {name} does not wait: it has its share, on {annotations.get(contract.NODE, 'a node')}"
    if not pod.asks_for_share(manifest):
        return f"pod {name} does not wait: it asks for no share of a GPU"
    if asked.request.group_size > 1:
        return f"pod {name} belongs to a group, and moves make room for single pods only"
    return ""


def share(annotations: Mapping[str, str]) -> RequestingPod:
    """Return a made-up pod with these annotations. Raises `RequestError`."""
    metadata = {"name": "hole", "namespace": "default", "annotations": dict(annotations)}
    return RequestingPod.from_manifest({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})


def largest_hole(world: World, budgets: Budgets, *, moves_cpu_only: bool = False) -> DefragPlan:
    """Plan to free the largest possible part of a GPU; the plan has no moves if that is free already, or nothing is
    possible.
    """
    plan = None
    for percent in _HOLES:
        asked = share({contract.REQUEST: quantity.format_compute(percent)})
        name = f"a hole of {quantity.format_compute(percent)} GPU"
        plan = make_room(world, [(name, asked)], budgets, stay=False, moves_cpu_only=moves_cpu_only)
        if plan.steps[0].gpus:
            break
    assert plan is not None  # noqa: S101 - there are sizes
    return plan


def empty_nodes(world: World, budgets: Budgets, *, max_moves: int) -> DefragPlan:
    """Plan to free as many nodes as possible of all shares, so that they can be removed; with a step per node.

    The nodes with the fewest pods come first. A node is emptied only if all its pods fit on nodes that are in use,
    while it and the nodes emptied before take no new pods. The world is left as the plan leaves it.
    """
    before = world.fragmentation()
    fixed: collections.Counter[str] = collections.Counter()
    may_leave = Movable(world, budgets, evicting.SYSTEM_PRIORITY, fixed)
    spent: Spent = collections.Counter()
    steps: list[DefragStep] = []
    emptied: Closed = ()
    for name in _fewest_pods_first(world):
        view = world.views[name]
        there = view.node.allocations
        if len(there) > max_moves or not all(map(may_leave, there)):
            continue
        empty = {other for other in world.usable() if not world.views[other].node.allocations}
        closed = (*emptied, *((name, gpu.uuid) for gpu in view.node.gpus if gpu.takes_shares))
        simulator = MoveSimulator(world, budgets, spent, may_leave, Effort())
        moves = simulator.vacate(name, closed)
        if moves is None or any(move.after.rpartition("/")[0] in empty for move in moves):
            simulator.undo()
            continue
        max_moves -= len(moves)
        spent.update(evicting.spend(budgets, [move.manifest for move in moves]))
        emptied = closed
        steps.append(DefragStep(name, None, f"{name}/" + ",".join(str(gpu.index) for gpu in view.node.gpus), moves))
    return DefragPlan(tuple(steps), before, world.fragmentation(), tuple(fixed.most_common()))


def _fewest_pods_first(world: World) -> list[str]:
    """Return the nodes with allocations by number of pods, then by compute."""

    def cost(name: str) -> tuple[int, int, str]:
        view = world.views[name]
        return len(view.node.allocations), sum(used.request_percent for used in view.used.values()), name

    return sorted((name for name in world.usable() if world.views[name].node.allocations), key=cost)
