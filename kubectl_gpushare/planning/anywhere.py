"""Single changes of a pod's node constraints, or of a node, with which the pod would fit. Each change is tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import NodeSpec, taints
from gpushare.placement import Placement, explanation
from gpushare.refusal import Rejected
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World
from kubectl_gpushare.planning.remedy import Remedy

AGENT: Final = "agent"  # the change: an agent that is stopped runs again
_MAX_NODES = 64  # tried, in the order of the candidates
_ENOUGH = 2**62  # of a resource: more than any pod asks for
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def less_choosy(world: World, asked: RequestingPod, _rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    """Drop one of the pod's constraints on nodes and other pods."""
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
        change = _specified(world, asked, otherwise, sentence, kind)
        if change is not None:
            yield change


def _specified(
    world: World, asked: RequestingPod, otherwise: dict[str, Any], sentence: str, kind: str
) -> Remedy | None:
    manifest = {**asked.manifest, "spec": {**(asked.manifest.get("spec") or {}), **otherwise}}
    answer = world.place(manifest, asked.request)
    if not isinstance(answer, Placement):
        return None
    return Remedy(sentence, answer, worlds.gpus(answer, world.views), kind)


def opened(world: World, asked: RequestingPod, rejected: Sequence[Rejected]) -> Iterator[Remedy]:
    """Try to let a node take the pod although it rejects pods now; for each way, yield the first node on which the pod
    fits.
    """
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
            with world.replacing_node_spec(changed), world.replacing(_reopened(node) if way == AGENT else node):
                answer = world.place(asked.manifest, asked.request)
            if isinstance(answer, Placement):
                yield Remedy(sentence, answer, worlds.gpus(answer, world.views), way)
                del ways[way]


def _uncordoned_node(node_spec: NodeSpec) -> tuple[str, NodeSpec] | None:
    kept = tuple(taint for taint in node_spec.taints if taint.key != taints.UNSCHEDULABLE)
    if len(kept) == len(node_spec.taints):
        return None
    return f"if the node {node_spec.name} were uncordoned", dataclasses.replace(node_spec, taints=kept)


def _untainted(node_spec: NodeSpec) -> tuple[str, NodeSpec] | None:
    """Return the node without custom taints; Kubernetes' own taints report a state of the node."""
    custom = tuple(taint for taint in node_spec.taints if not taint.key.startswith("node.kubernetes.io/"))
    if not custom:
        return None
    kept = tuple(taint for taint in node_spec.taints if taint not in custom)
    sentence = "with a toleration of " + " and ".join(map(str, custom))
    return sentence, dataclasses.replace(node_spec, taints=kept)


def _reopened(node: GpuNode) -> GpuNode:
    """Return the node as it would be if its stopped agent ran again."""
    conditions = tuple(condition for condition in node.conditions if condition.reason != contract.REASON_AGENT_STOPPED)
    return dataclasses.replace(node, conditions=conditions).as_closed("")


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
