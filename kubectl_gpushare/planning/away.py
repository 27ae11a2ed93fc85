"""Away: nodes that take no pod with a share now, whatever is free on their GPUs, by what their Node objects say.

That the agent runs is told by the kubelet: it offers gpushare's resources only as long as the agent's device plugin is
connected to it. So it costs nobody a heartbeat. An agent that was told to stop has said so in the GPUNode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from gpushare import contract, node
from gpushare.gpunode import GpuNode


@dataclasses.dataclass(frozen=True, slots=True)
class Away:
    """Why in a word, as STATUS has it, and in a sentence."""

    word: str
    sentence: str


def of(nodes: Iterable[GpuNode], machines: Iterable[node.NodeJson] | None) -> dict[str, Away]:
    """Those that are away, by name; none where Nodes are not known."""
    if machines is None:
        return {}
    known = {node.name(one): one for one in machines}
    judged = ((one.name, _judge(one, known.get(one.name))) for one in nodes)
    return {name: found for name, found in judged if found is not None}


def _judge(found: GpuNode, machine: node.NodeJson | None) -> Away | None:
    if machine is None:
        return Away("NoNode", f"there is no Node {found.name} any more")
    if node.readiness(machine) != "True":
        return Away("NotReady", f"the node {found.name} is not ready: no pod starts there")
    if (machine.get("spec") or {}).get("unschedulable"):
        return Away("NodeCordoned", f"the node {found.name} is cordoned: kubectl uncordon {found.name}")
    ready = found.condition(contract.CONDITION_READY)
    if ready is not None and ready.reason == contract.REASON_AGENT_STOPPED:
        return Away("NoAgent", f"{found.name}: {ready.message}")
    if _is_without_agent(found, (machine.get("status") or {}).get("allocatable") or {}):
        return Away(
            "NoAgent", f"the agent of {found.name} does not run: its kubelet offers no {contract.RESOURCE_PERCENT}"
        )
    return None


def _is_without_agent(found: GpuNode, allocatable: Mapping[str, object]) -> bool:
    """Certain only where GPUs are to be offered: a node that only has GPUs in other modes is not judged."""
    if not any(card.takes_shares and card.pending_mode is None for card in found.gpus):
        return False
    return bool(allocatable) and str(allocatable.get(contract.RESOURCE_PERCENT, "0")) == "0"
