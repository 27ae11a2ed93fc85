"""Goals: plans that make room for given pods with the fewest moves, free the largest hole, or empty nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpushare import contract, errors, pod, quantity
from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import Departure, Movable
from gpushare.defragmentation.moves import DefragPlan, DefragStep, MoveSimulator, Waiting
from gpushare.placement import Placement
from gpushare.refusal import Refusal
from gpushare.whatif import world as worlds
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World

_HOLES = (100, 75, 50, 25)  # percent of a GPU, compute and memory


def make_room(
    world: World, wanted: Waiting, budgets: Budgets, *, stay: bool = True, moves_cpu_only: bool = False
) -> DefragPlan:
    """Make room for each of these pods in turn, with the fewest moves; the world is left as the plan leaves it.

    stay: the pods are gated and get placed; otherwise the capacity stays free. moves_cpu_only: CPU-only pods may be
    moved, too.
    """
    before, movable = world.fragmentation(), Movable(world, budgets, with_cpu_only=moves_cpu_only)
    simulator = MoveSimulator(movable)
    steps: list[DefragStep] = []
    for name, asked in wanted:
        movable.protect_above(pod.priority(asked.manifest) if pod.uid(asked.manifest) else evicting.SYSTEM_PRIORITY)
        answer = world.place(asked.manifest, asked.request)
        moves = () if isinstance(answer, Placement) else simulator.room(asked)
        mark = simulator.mark
        gpus = simulator.admit(asked)
        if not stay:
            simulator.undo(mark)
        steps.append(DefragStep(name, asked, gpus, moves, reason="" if gpus else str(answer)))
    return DefragPlan(tuple(steps), before, world.fragmentation(), movable.fixed)


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
        if not asked.request.group_size.is_gang and isinstance(world.place(manifest, asked.request), Refusal):
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
    if asked.request.group_size.is_gang:
        return f"pod {name} belongs to a group, and moves make room for single pods only"
    return ""


def share(annotations: Mapping[str, str]) -> RequestingPod:
    """Return a made-up pod with these annotations. Raises `RequestError`."""
    metadata = {"name": "hole", "namespace": "default", "annotations": dict(annotations)}
    return RequestingPod.from_manifest({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})


def largest_hole(world: World, budgets: Budgets, *, moves_cpu_only: bool = False) -> DefragPlan:
    """Plan to free the largest possible part of a GPU, without moves if it is free already or nothing is possible."""
    for size in map(quantity.format_compute, _HOLES):
        wanted = [(f"a free part of {size} GPU", share({contract.REQUEST: size}))]
        plan = make_room(world, wanted, budgets, stay=False, moves_cpu_only=moves_cpu_only)
        if plan.steps[0].gpus:
            break
    return plan


def empty_nodes(world: World, budgets: Budgets, *, max_moves: int) -> DefragPlan:
    """Plan to free as many nodes as possible of all shares, so that they can be removed; with a step per node.

    The nodes with the fewest pods come first. A node is emptied only if all its pods fit on nodes that are in use,
    while it and the nodes emptied before take no new pods. The world is left as the plan leaves it.
    """
    before, movable, steps = world.fragmentation(), Movable(world, budgets), list[DefragStep]()
    simulator = MoveSimulator(movable)

    def cost(name: str) -> tuple[int, int, str]:
        view = world.views[name]
        return len(view.node.allocations), sum(used.request_percent for used in view.used.values()), name

    for name in sorted((name for name in world.usable() if world.views[name].node.allocations), key=cost):
        node, mark = world.views[name].node, simulator.mark
        movers = tuple(filter(None, (movable.get(name, entry) for entry in node.allocations)))
        if len(node.allocations) > max_moves or len(movers) < len(node.allocations):
            continue
        empty = {other for other in world.usable() if not world.views[other].node.allocations}
        uuids = tuple(gpu.uuid for gpu in node.gpus if gpu.takes_shares)
        moves = simulator.leave(Departure(name, uuids, movers))
        if moves is None or any(move.nodes[1] in empty for move in moves):
            simulator.undo(mark)
            continue
        max_moves -= len(moves)
        simulator.cordon((*simulator.closed, *((name, uuid) for uuid in uuids)))
        gpus = worlds.format_gpus(node, {gpu.uuid for gpu in node.gpus})
        steps.append(DefragStep(name, None, gpus, moves))
    simulator.cordon(())
    return DefragPlan(tuple(steps), before, world.fragmentation(), movable.fixed)
