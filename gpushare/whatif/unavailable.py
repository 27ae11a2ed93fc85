"""Nodes that take no pod with a share now, whatever is free on their GPUs, by their Node objects.

The kubelet says whether the agent runs: it offers gpushare's resources only while the agent's device plugin is
connected. So agents need no heartbeat. An agent that stops in an orderly way says so in the GPUNode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from gpushare import contract, node
from gpushare.gpunode import GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class UnavailableNode:
    """Why a node takes no pods: as a word, for STATUS, and as a sentence."""

    word: str
    sentence: str


def find(nodes: Iterable[GpuNode], node_objects: Iterable[node.NodeJson] | None) -> dict[str, UnavailableNode]:
    """Return the nodes that take no pods, by name; empty if the Nodes are unknown."""
    if node_objects is None:
        return {}
    known = {node.name(node_object): node_object for node_object in node_objects}
    reasons = ((gpu_node.name, _reason(gpu_node, known.get(gpu_node.name))) for gpu_node in nodes)
    return {name: reason for name, reason in reasons if reason is not None}


def _reason(gpu_node: GpuNode, node_object: node.NodeJson | None) -> UnavailableNode | None:
    if node_object is None:
        return UnavailableNode("NoNode", f"there is no Node {gpu_node.name} any more")
    if node.readiness(node_object) != "True":
        return UnavailableNode("NotReady", f"the node {gpu_node.name} is not ready: no pod starts there")
    if (node_object.get("spec") or {}).get("unschedulable"):
        return UnavailableNode(
            "NodeCordoned", f"the node {gpu_node.name} is cordoned: kubectl uncordon {gpu_node.name}"
        )
    ready = gpu_node.condition(contract.CONDITION_READY)
    if ready is not None and ready.reason == contract.REASON_AGENT_STOPPED:
        return UnavailableNode("NoAgent", f"{gpu_node.name}: {ready.message}")
    if _is_without_agent(gpu_node, (node_object.get("status") or {}).get("allocatable") or {}):
        return UnavailableNode(
            "NoAgent", f"the agent of {gpu_node.name} does not run: its kubelet offers no {contract.RESOURCE_PERCENT}"
        )
    return None


def _is_without_agent(gpu_node: GpuNode, allocatable: Mapping[str, object]) -> bool:
    """Whether the kubelet lacks resources that a running agent would offer; false on nodes without shared GPUs."""
    if not any(gpu.takes_shares and gpu.pending_mode is None for gpu in gpu_node.gpus):
        return False
    return bool(allocatable) and str(allocatable.get(contract.RESOURCE_PERCENT, "0")) == "0"
