"""Goals: what `defrag` makes room for: gated pods, a share of a given size, or the largest possible hole."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping

from gpushare import contract, errors, pod, quantity
from gpushare.defragmentation import evicting, fewest_moves
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import Movable
from gpushare.defragmentation.plan import Closed, DefragPlan, DefragStep
from gpushare.defragmentation.playing import Effort, Player, Spent
from gpushare.refusal import Refusal
from gpushare.whatif.world import RequestingPod, World

_HOLES = (100, 75, 50, 25)  # per cent of a GPU, compute and memory


def waiting(world: World, manifests: Iterable[pod.PodJson]) -> list[tuple[str, RequestingPod]]:
    """Gated pods that fit nowhere now, by priority, then age."""
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
    """Why moves cannot help the named pod, as a sentence; empty if they might."""
    name, annotations = "/".join(pod.namespaced_name(manifest)), pod.annotations_of(manifest)
    if contract.ALLOCATION in annotations:
        return f"pod {name} waits for nothing: it has its share, on {annotations.get(contract.NODE, 'a node')}"
    if not pod.asks_for_share(manifest):
        return f"pod {name} waits for nothing: it asks for no share of a GPU"
    if asked.request.group_size > 1:
        return f"pod {name} is one of a group, and moves make room for single pods only"
    return ""


def share(annotations: Mapping[str, str]) -> RequestingPod:
    """A made-up pod with these annotations. Raises `RequestError`."""
    metadata = {"name": "hole", "namespace": "default", "annotations": dict(annotations)}
    return RequestingPod.from_manifest({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})


def largest_hole(world: World, budgets: Budgets, *, moves_cpu_only: bool = False) -> DefragPlan:
    """The plan for the largest part of a GPU that can be freed; without moves if none can be or it is free already."""
    plan = None
    for percent in _HOLES:
        asked = share({contract.REQUEST: quantity.format_compute(percent)})
        name = f"a hole of {quantity.format_compute(percent)} GPU"
        plan = fewest_moves.plan(world, [(name, asked)], budgets, stay=False, moves_cpu_only=moves_cpu_only)
        if plan.steps[0].gpus:
            break
    assert plan is not None  # noqa: S101 - there are sizes
    return plan


def empty_nodes(world: World, budgets: Budgets, *, max_moves: int) -> DefragPlan:
    """The plan, of at most `max_moves` moves, with a step per node; leaves the world as the plan leaves it."""
    before = world.fragmentation()
    fixed: collections.Counter[str] = collections.Counter()
    may_leave = Movable(world, budgets, evicting.SYSTEM_PRIORITY, fixed)
    spent: Spent = collections.Counter()
    steps: list[DefragStep] = []
    kept: Closed = ()
    for name in _fewest_pods_first(world):
        view = world.views[name]
        there = view.node.allocations
        if len(there) > max_moves or not all(map(may_leave, there)):
            continue
        empty = {other for other in world.usable() if not world.views[other].node.allocations}
        closed = (*kept, *((name, gpu.uuid) for gpu in view.node.gpus if gpu.takes_shares))
        player = Player(world, budgets, spent, may_leave, Effort())
        moves = player.vacate(name, closed)
        if moves is None or any(move.after.rpartition("/")[0] in empty for move in moves):
            player.take_back()
            continue
        max_moves -= len(moves)
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
