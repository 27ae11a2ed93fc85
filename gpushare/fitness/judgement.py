"""Judgement: a machine, who is on it, and the shape of a pod → why it cannot run there, or None.

The rules are kube-scheduler's filters of Kubernetes 1.36 in its own order, as a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpushare import contract
from gpushare.fitness import crowd, ports, resources, taints
from gpushare.fitness.machine import Machine
from gpushare.fitness.shape import Shape

Rule = Callable[[Machine, crowd.Crowd, Shape], str | None]

EMPTY: Final = crowd.Crowd()
_UNITS: Final = {
    resources.CPU: "CPUs",
    resources.MEMORY: "memory",
    resources.EPHEMERAL_STORAGE: "ephemeral storage",
}


def unfit(machine: Machine, there: crowd.Crowd, shape: Shape) -> str | None:
    """The rest of a sentence, with numbers ("has 500m of 4 CPUs free, 2 are asked for"); None if the pod can run.

    What our ledger counts as well is left out: see `short`.
    """
    for rule in RULES:
        reason = rule(machine, there, shape)
        if reason is not None:
            return reason
    return None


def short(machine: Machine, there: crowd.Crowd, amounts: tuple[tuple[str, int], ...]) -> str | None:
    """The first of the amounts that the node has not free, as the rest of a sentence."""
    if machine.allocatable is None:
        return None
    for name, asked in amounts:
        most = machine.allocatable.get(name, 0)
        free = most - there.amounts.get(name, 0)
        if asked > free:
            shown = (resources.format_amount(name, amount) for amount in (max(0, free), most, asked))
            return "has {} of {} {what} free, {} {verb} asked for".format(
                *shown, what=_UNITS.get(name, name), verb="is" if (name, asked) == (resources.CPU, 1000) else "are"
            )
    return None


def _taints(machine: Machine, _there: crowd.Crowd, shape: Shape) -> str | None:
    found = taints.untolerated(machine.taints, shape.tolerations)
    if found is None:
        return None
    return found.told or f"has the taint {found}, which the pod does not tolerate"


def _hostname(machine: Machine, _there: crowd.Crowd, _shape: Shape) -> str | None:
    if machine.hostname is not None:
        return None
    return f"has no label {contract.HOSTNAME_LABEL}, by which a pod is pinned to its node"


def _selector(machine: Machine, _there: crowd.Crowd, shape: Shape) -> str | None:
    for key, value in shape.selector:
        if machine.labels.get(key) != value:
            return f"has not the label {key}={value} of the pod's node selector"
    if shape.terms is None or any(term.matches(machine.name, machine.labels) for term in shape.terms):
        return None
    return "does not match the pod's node affinity"


def _ports(_machine: Machine, there: crowd.Crowd, shape: Shape) -> str | None:
    found = ports.conflict(shape.ports, there.ports) if shape.ports else None
    return None if found is None else f"has its port {found[2]}/{found[1]} in use, which the pod wants of the host"


def _pods(machine: Machine, there: crowd.Crowd, _shape: Shape) -> str | None:
    if machine.allocatable is None:
        return None
    most = machine.allocatable.get(resources.PODS, 0)
    return None if there.count < most else f"has {there.count} pods, and room for no more than {most}"


def _amounts(machine: Machine, there: crowd.Crowd, shape: Shape) -> str | None:
    return short(machine, there, shape.amounts)


RULES: Final[tuple[Rule, ...]] = (_taints, _hostname, _selector, _ports, _pods, _amounts)
