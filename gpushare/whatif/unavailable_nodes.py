"""Unavailable nodes: nodes that cannot start a pod with a share now, by their Node objects.

Agents need no heartbeat: the kubelet offers gpushare's resources only while the agent's device plugin is connected. An
agent that shuts down in order says so in the GPUNode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from gpushare import contract, node
from gpushare.gpunode import Gpu, GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class UnavailableNode:
    """Why a node is unavailable: a word for STATUS, and a sentence."""

    word: str
    sentence: str


def find(nodes: Iterable[GpuNode], node_manifests: Iterable[node.NodeJson] | None) -> dict[str, UnavailableNode]:
    """Return the unavailable nodes by name; empty if the Nodes are unknown."""
    if node_manifests is None:
        return {}
    known = {node.name(manifest): manifest for manifest in node_manifests}
    checked = ((gpu_node.name, _check(gpu_node, known.get(gpu_node.name))) for gpu_node in nodes)
    return {name: reason for name, reason in checked if reason is not None}


def _check(gpu_node: GpuNode, manifest: node.NodeJson | None) -> UnavailableNode | None:
    if manifest is None:
        return UnavailableNode("NoNode", f"Node {gpu_node.name} no longer exists")
    if node.readiness(manifest) != "True":
        return UnavailableNode("NotReady", f"node {gpu_node.name} is not ready, so no pod can start there")
    if (manifest.get("spec") or {}).get("unschedulable"):
        return UnavailableNode("NodeCordoned", f"node {gpu_node.name} is cordoned: kubectl uncordon {gpu_node.name}")
    why = without_agent(gpu_node, (manifest.get("status") or {}).get("allocatable") or {})
    return UnavailableNode("NoAgent", why) if why else None


def without_agent(gpu_node: GpuNode, allocatable: Mapping[str, object]) -> str:
    """Return why no agent serves the node, as a sentence; empty if one seems to."""
    ready = gpu_node.condition(contract.CONDITION_READY)
    if ready is not None and ready.reason == contract.REASON_AGENT_STOPPED:
        return f"{gpu_node.name}: {ready.message}"
    # A running agent offers resources, unless its node has no shared GPUs.
    is_shared = any(_is_offered(gpu) and gpu.pending_mode is None for gpu in gpu_node.gpus)
    if is_shared and allocatable and str(allocatable.get(contract.RESOURCE_PERCENT, "0")) == "0":
        return f"the agent of {gpu_node.name} is not running: its kubelet offers no {contract.RESOURCE_PERCENT}"
    return ""


def _is_offered(gpu: Gpu) -> bool:
    """Whether a running agent offers shares of the GPU: also while a placeholder has it that is given back."""
    has_placeholder = gpu.owner not in {"", contract.OTHER_OWNER}
    return dataclasses.replace(gpu, unowned=gpu.unowned and not has_placeholder).takes_shares
