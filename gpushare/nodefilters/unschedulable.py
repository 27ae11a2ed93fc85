"""A node, the pods on it, and the key of a pod → why the node is unschedulable for it, or None.

The rules are kube-scheduler's filters of Kubernetes 1.36 in its own order, as a table. Those that come before them are
about the machine alone, and asked of all at once: see `opening`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpushare.nodefilters import node_info, pod_requests
from gpushare.nodefilters.node_spec import NodeSpec
from gpushare.nodefilters.pod_key import PodKey

Rule = Callable[[NodeSpec, node_info.NodeInfo, PodKey], str | None]

EMPTY: Final = node_info.NodeInfo()
_UNITS: Final = {
    pod_requests.CPU: "CPUs",
    pod_requests.MEMORY: "memory",
    pod_requests.EPHEMERAL_STORAGE: "ephemeral storage",
}


def unfit(machine: NodeSpec, there: node_info.NodeInfo, shape: PodKey) -> str | None:
    """The rest of a sentence, with numbers ("has 500m of 4 CPUs free, 2 are asked for"); None if there is room.

    What our ledger counts as well is left out: see `withheld`.
    """
    for rule in RULES:
        reason = rule(machine, there, shape)
        if reason is not None:
            return reason
    return None


def short(machine: NodeSpec, there: node_info.NodeInfo, amounts: tuple[tuple[str, int], ...]) -> str | None:
    """The first of the amounts that the node has not free, as the rest of a sentence."""
    if machine.allocatable is None:
        return None
    for name, asked in amounts:
        most = machine.allocatable.get(name, 0)
        if asked > most and name in _UNITS:
            whole, needed = pod_requests.format_amount(name, most), pod_requests.format_amount(name, asked)
            return f"has {whole} {_UNITS[name]} in all, {needed} {_are(name, asked)} asked for"
        free = most - there.amounts.get(name, 0)
        if asked > free:
            shown = (pod_requests.format_amount(name, amount) for amount in (max(0, free), most, asked))
            return "has {} of {} {what} free, {} {verb} asked for".format(
                *shown, what=_UNITS.get(name, name), verb=_are(name, asked)
            )
    return None


def _are(name: str, amount: int) -> str:
    return "is" if (name, amount) == (pod_requests.CPU, 1000) else "are"


def withheld(machine: NodeSpec, there: node_info.NodeInfo, amounts: tuple[tuple[str, int], ...]) -> str | None:
    """The same of what our ledger counts as well, and has: it is the agent that has not told the kubelet of it."""
    for name, asked in amounts:
        if asked and machine.allocatable is not None and not machine.allocatable.get(name, 0):
            return f"has free GPUs and no agent that runs: its kubelet offers no {name}"
    reason = short(machine, there, amounts)
    return None if reason is None else f"{reason}; its GPUs have more, which its agent has yet to offer"


def _ports(_machine: NodeSpec, there: node_info.NodeInfo, shape: PodKey) -> str | None:
    taken = there.ports.conflict(shape.ports) if shape.ports else None
    return None if taken is None else f"has its port {taken[2]}/{taken[1]} in use, which the pod wants of the host"


def _pods(machine: NodeSpec, there: node_info.NodeInfo, _shape: PodKey) -> str | None:
    if machine.allocatable is None:
        return None
    most = machine.allocatable.get(pod_requests.PODS, 0)
    return None if there.count < most else f"has {there.count} pods, and room for no more than {most}"


def _amounts(machine: NodeSpec, there: node_info.NodeInfo, shape: PodKey) -> str | None:
    return short(machine, there, shape.amounts)


RULES: Final[tuple[Rule, ...]] = (_ports, _pods, _amounts)
