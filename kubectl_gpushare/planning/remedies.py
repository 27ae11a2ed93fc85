"""Finds single changes with which a pod that fits nowhere would fit. Each is tried, none is guessed.

It looks for the smallest change of each kind, the least disturbing first: the pod asks for less, or has fewer
constraints on GPUs or nodes; a GPU or node is uncordoned, or an agent runs again; an older pod of its Deployment ends
first; one other pod moves. If nothing else helps, the smallest pod that is in the way may end; if no single move helps,
several moves in turn may (`defragmented`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors, pod, quantity
from gpushare.allocation import Allocation, Share
from gpushare.defragmentation import goals
from gpushare.defragmentation.evicting import Budgets
from gpushare.nodefilters import NodeSpec, taints
from gpushare.placement import NodeView, Placement, explanation, filters
from gpushare.placement.filters import Sees
from gpushare.refusal import Rejected
from gpushare.request import CONSTRAINTS
from gpushare.whatif import world as worlds
from gpushare.whatif.requesting_pod import RequestingPod, without_placement
from gpushare.whatif.world import Answer, World


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """A change, as the rest of "it would fit …", and where the pod would go then."""

    sentence: str
    placement: Placement
    gpus: str  # such as `gpu-1/0,2`
    # memory, request, gpus, a constraint's key without its prefix, a field of the pod's spec, toleration, uncordon,
    # uncordon-node, agent, surge, move, end, defrag
    kind: str
    key: str = ""  # the annotation to change, if the remedy is one
    value: str | None = None  # its new value; None: remove it


# The sentence if no single change helps.
NONE = (
    "no single change helps; tried: a smaller share, fewer conditions on GPUs, nodes or neighbours, one GPU or node "
    "uncordoned, one agent restarted, one pod moved or ended"
)
_MIB = 2**20
_MAX_MOVES = 200  # pods that are tried, those on the nearest misses first
_SMALL_PERCENT = 25  # up to this compute, a share may be satisfied with idle time alone
_MAX_SIZES = 64  # sizes tried per kind, the largest first
_MIN_PART = 4  # a pod with less than a quarter of the requested amount is not the same pod


def _remedy(world: World, answer: Placement, sentence: str, kind: str) -> Remedy:
    return Remedy(sentence, answer, worlds.gpus(answer, world.views), kind)


def all_of(world: World, asked: RequestingPod, rejected: Sequence[Rejected]) -> list[Remedy]:
    """Return the smallest change of each kind, the least disturbing first. `rejected`: why candidates do not fit."""
    kinds = (_less, _fewer_gpu_constraints, _fewer_node_constraints, _uncordoned, _opened, without_surge, _moved)
    return [change for kind in kinds for change in kind(world, asked, rejected)] or [*_ended(world, asked, rejected)]


def _less(world: World, asked: RequestingPod, _rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    annotations = pod.annotations_of(asked.manifest)
    for kind, sizes in (("memory", _memory_sizes), ("request", _compute_sizes), ("gpus", _counts)):
        key = contract.PREFIX + kind
        present = [name for name in annotations if name == key or name.startswith(f"{key}.")] or (
            [key] if kind == "memory" and contract.REQUEST in annotations else []
        )
        for name in present:
            before = f'instead of "{annotations[name]}"' if name in annotations else "as well"
            for value in sizes(world, asked, name):
                change = _tried(world, asked, name, value, f'with {name} "{value}" {before}', kind)
                if change is not None:
                    yield change
                    break


def _fewer_gpu_constraints(world: World, asked: RequestingPod, _rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    annotations = pod.annotations_of(asked.manifest)
    for key in CONSTRAINTS:
        if key in annotations:
            sentence = f"without {key} {errors.quoted(annotations[key])}"
            change = _tried(world, asked, key, None, sentence, key.removeprefix(contract.PREFIX))
            if change is not None:
                yield change


def _tried(world: World, asked: RequestingPod, key: str, value: str | None, sentence: str, kind: str) -> Remedy | None:
    changed = asked.with_annotation(key, value)
    if changed is None or world.range_of(changed).excess(changed.request):
        return None
    answer = world.place(changed.manifest, changed.request)
    if not isinstance(answer, Placement):
        return None
    return dataclasses.replace(_remedy(world, answer, sentence, kind), key=key, value=value)


def _uncordoned(world: World, asked: RequestingPod, rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    for miss in rejected:
        if miss.rule != "cordon" or miss.gpu_index is None:
            continue
        owner = world.views[miss.node].node
        gpus = tuple(
            dataclasses.replace(gpu, cordoned=False) if gpu.index == miss.gpu_index else gpu for gpu in owner.gpus
        )
        with world.replacing(dataclasses.replace(owner, gpus=gpus)):
            answer = world.place(asked.manifest, asked.request)
        if isinstance(answer, Placement):
            yield _remedy(world, answer, f"if {miss.node}/{miss.gpu_index} were uncordoned", "uncordon")
            return


def defragmented(world: World, name: str, asked: RequestingPod, budgets: Budgets) -> Remedy | None:
    """Return the moves in turn that `defrag` plans for this pod, if any; leaves the world as it would be after them."""
    if goals.pointless(asked.manifest, asked):
        return None
    (step,) = goals.make_room(world, [(name, asked)], budgets, stay=False).steps
    answer = world.place(asked.manifest, asked.request) if step.moves else None
    if not isinstance(answer, Placement):
        return None
    count = "1 move" if len(step.moves) == 1 else f"{len(step.moves)} moves"
    sentence = f"after {count}, which `kubectl gpushare defrag {name} -n {asked.namespace}` plans"
    return _remedy(world, answer, sentence, "defrag")


def _moved(world: World, asked: RequestingPod, rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    for view, entry in _in_the_way(world, rejected):
        manifest = world.manifest(entry)
        if manifest is None:
            continue
        try:
            mover = RequestingPod.from_manifest(without_placement(manifest))
        except errors.RequestError:
            continue
        back = world.remove(manifest, view.node.name, entry)
        answer = world.place(asked.manifest, asked.request)
        elsewhere: Answer | None = None
        if isinstance(answer, Placement):
            undo = world.assign(asked.manifest, asked.request, answer)
            elsewhere = world.place(mover.manifest, mover.request)
            undo()
        back()
        if isinstance(answer, Placement) and isinstance(elsewhere, Placement):
            where = worlds.gpus(elsewhere, world.views)
            yield _remedy(world, answer, f"if {entry.pod} moved to {where}", "move")
            return


def _ended(world: World, asked: RequestingPod, rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    for view, entry in _in_the_way(world, rejected):
        manifest = world.manifest(entry)
        if manifest is None:
            continue
        back = world.remove(manifest, view.node.name, entry)
        answer = world.place(asked.manifest, asked.request)
        back()
        if isinstance(answer, Placement):
            yield _remedy(world, answer, f"if {entry.pod} ended", "end")
            return


def _in_the_way(world: World, rejected: Sequence[Rejected]) -> Iterator[tuple[NodeView, Allocation]]:
    """Return the allocations whose end might help: on the nearest misses first, then the smallest shares."""
    seen: set[str] = set()
    by_others = {explanation.COUNT_RULE, *(name for name, rule in filters.RULES.items() if rule.sees is not Sees.GPU)}
    misses = sorted((miss for miss in rejected if miss.rule in by_others), key=lambda miss: miss.shortfall)
    for miss in misses:
        view = world.views[miss.node]
        for gpu, used in view.gpus():
            if miss.gpu_index is not None and gpu.index != miss.gpu_index:
                continue
            for entry in sorted(used.holders, key=_size):
                if entry.id in seen or entry.is_backfill_reservation or entry.reserved_until is not None:
                    continue
                seen.add(entry.id)
                if len(seen) > _MAX_MOVES:
                    return
                yield view, entry


def _size(entry: Allocation) -> tuple[int, int]:
    return (
        sum(share.request_percent * len(share.gpu_uuids) for share in entry.shares),
        sum(share.memory_bytes * len(share.gpu_uuids) for share in entry.shares),
    )


def _memory_sizes(world: World, asked: RequestingPod, key: str) -> Iterable[str]:
    free = {
        (gpu.memory_bytes - used.memory_bytes) // _MIB
        for view in world.views.values()
        for gpu, used in view.gpus()
        if gpu.takes_shares
    }
    memory = _share(asked, key).memory
    most = max((memory.on(gpu.memory_bytes) for view in world.views.values() for gpu in view.node.gpus), default=0)
    sizes = sorted((mib for mib in free if most <= mib * _MIB * _MIN_PART and mib * _MIB < most), reverse=True)
    return [f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi" for mib in sizes[:_MAX_SIZES]]


def _compute_sizes(world: World, asked: RequestingPod, key: str) -> Iterable[str]:
    share = _share(asked, key)
    free = {100 - use.request_percent for view in world.views.values() for gpu, use in view.gpus() if gpu.takes_shares}
    most = share.request_percent
    sizes = sorted((percent for percent in free if most <= percent * _MIN_PART and percent < most), reverse=True)
    # 0 is a share of idle time only; it fits only if the pod also has a memory annotation.
    least = [0] if 0 < most <= _SMALL_PERCENT else []
    return [quantity.format_compute(percent) for percent in [*sizes, *least]]


def _counts(_world: World, asked: RequestingPod, key: str) -> Iterable[str]:
    most = max(demand.gpus for demand in asked.request.demands if _is_of(key, demand.containers))
    return [str(count) for count in range(most - 1, 0, -1)]


def _share(asked: RequestingPod, key: str) -> Share:
    demands = [demand for demand in asked.request.demands if _is_of(key, demand.containers)]
    return (demands or list(asked.request.demands))[0].share


def _is_of(key: str, containers: Sequence[str]) -> bool:
    _, dot, container = key.removeprefix(contract.PREFIX).partition(".")
    return not dot or container in containers


def without_surge(world: World, asked: RequestingPod, _rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    """Return the world after one pod of an older template of its Deployment has ended."""
    deployment, template = pod.deployment(asked.manifest)
    namespace, _ = pod.namespaced_name(asked.manifest)
    for view in [*world.views.values()] if deployment else ():
        for entry in view.node.allocations:
            manifest = world.manifest(entry)
            if manifest is None or entry.pod.namespace != namespace:
                continue
            its_deployment, its_template = pod.deployment(manifest)
            if its_deployment != deployment or its_template == template:
                continue
            back = world.remove(manifest, view.node.name, entry)
            answer = world.place(asked.manifest, asked.request)
            back()
            if isinstance(answer, Placement):
                sentence = f"if {entry.pod}, of an older template, ended first: maxSurge 0 in deploy/{deployment}"
                yield _remedy(world, answer, sentence, "surge")
                return


AGENT: Final = "agent"  # the change: an agent that is stopped runs again
_MAX_NODES = 64  # tried, in the order of the candidates
_ENOUGH = 2**62  # of a resource: more than any pod asks for
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _fewer_node_constraints(world: World, asked: RequestingPod, _rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    spec = asked.manifest.get("spec") or {}
    selector, affinity = spec.get("nodeSelector") or {}, spec.get("affinity") or {}
    kept: list[tuple[str, str, dict[str, Any]]] = [
        (
            f"without {key}={selector[key]} in its nodeSelector",
            "nodeSelector",
            {"nodeSelector": {other: value for other, value in selector.items() if other != key}},
        )
        for key in sorted(selector)
    ]
    kept += [
        (f"without its required {kind}", kind, {"affinity": {**affinity, kind: None}})
        for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")
        if (affinity.get(kind) or {}).get(_REQUIRED)
    ]
    if any(
        constraint.get("whenUnsatisfiable") == "DoNotSchedule"
        for constraint in spec.get("topologySpreadConstraints") or []
    ):
        sentence = "without its topologySpreadConstraints"
        kept.append((sentence, "topologySpreadConstraints", {"topologySpreadConstraints": []}))
    for sentence, kind, otherwise in kept:
        answer = world.place({**asked.manifest, "spec": {**spec, **otherwise}}, asked.request)
        if isinstance(answer, Placement):
            yield _remedy(world, answer, sentence, kind)


def _opened(world: World, asked: RequestingPod, rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    """Let a node take the pod although it rejects pods now: for each way, the first node on which the pod fits."""
    ways = dict(_OPENED)
    nodes = dict.fromkeys(miss.node for miss in rejected if miss.rule in {explanation.NODE_RULE, "closed"})
    for name in [*nodes][:_MAX_NODES]:
        node_spec = world.node_spec(name)
        if node_spec is None:
            continue
        for way, change in list(ways.items()):
            remedied = change(node_spec)
            if remedied is None:
                continue
            sentence, changed = remedied
            node = world.views[name].node
            if way == AGENT:
                kept = tuple(entry for entry in node.conditions if entry.reason != contract.REASON_AGENT_STOPPED)
                node = dataclasses.replace(node, conditions=kept).as_closed("")
            with world.replacing_node_spec(changed), world.replacing(node):
                answer = world.place(asked.manifest, asked.request)
            if isinstance(answer, Placement):
                yield _remedy(world, answer, sentence, way)
                del ways[way]


def _uncordoned_node(node_spec: NodeSpec) -> tuple[str, NodeSpec] | None:
    kept = tuple(taint for taint in node_spec.taints if taint.key != taints.UNSCHEDULABLE)
    if len(kept) == len(node_spec.taints):
        return None
    return f"if the node {node_spec.name} were uncordoned", dataclasses.replace(node_spec, taints=kept)


def _untainted(node_spec: NodeSpec) -> tuple[str, NodeSpec] | None:
    custom = tuple(taint for taint in node_spec.taints if not taint.key.startswith("node.kubernetes.io/"))
    if not custom:
        return None
    kept = tuple(taint for taint in node_spec.taints if taint not in custom)
    sentence = "with a toleration of " + " and ".join(map(str, custom))
    return sentence, dataclasses.replace(node_spec, taints=kept)


def _with_agent(node_spec: NodeSpec) -> tuple[str, NodeSpec] | None:
    if node_spec.allocatable is None or node_spec.allocatable.get(contract.RESOURCE_PERCENT):
        return None
    offered = dict.fromkeys((contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY, contract.RESOURCE_IDLE), _ENOUGH)
    sentence = f"if the agent of {node_spec.name} ran"
    return sentence, dataclasses.replace(node_spec, allocatable={**node_spec.allocatable, **offered})


# kind of change -> a sentence and the changed Node; None if it changes nothing
_OPENED: Final[Mapping[str, Callable[[NodeSpec], tuple[str, NodeSpec] | None]]] = {
    "toleration": _untainted,
    "uncordon-node": _uncordoned_node,
    AGENT: _with_agent,
}
