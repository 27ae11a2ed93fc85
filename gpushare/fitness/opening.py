"""Opening: which machines will do for a shape of pod, whoever is there; found out for all of them at once.

These are kube-scheduler's filters that look at the Node alone, in its own order.
"""

from __future__ import annotations

from gpushare import contract
from gpushare.fitness import taints
from gpushare.fitness.machine import Machine
from gpushare.fitness.machines import Machines
from gpushare.fitness.postings import Rows
from gpushare.fitness.shape import Shape


class Opening:
    """True of the machines as they are when it is made."""

    def __init__(self, machines: Machines, shape: Shape) -> None:
        self._shape = shape
        self._tainted: dict[int, str | None] = {}  # by which object a machine's taints are: equal ones are one
        tolerated = machines.tolerated(shape)
        self.rows: Rows = tolerated & machines.labels.having(contract.HOSTNAME_LABEL) & machines.selected(shape)

    def why_not(self, machine: Machine) -> str:
        """Of a machine that is not among the rows: what is against it, as the rest of a sentence."""
        known = id(machine.taints)
        if known not in self._tainted:
            self._tainted[known] = _taints(machine, self._shape)
        reason = self._tainted[known]
        if reason is not None:
            return reason
        if machine.hostname is None:
            return f"has no label {contract.HOSTNAME_LABEL}, by which a pod is pinned to its node"
        for key, value in self._shape.selector:
            if machine.labels.get(key) != value:
                return f"has not the label {key}={value} of the pod's node selector"
        return "does not match the pod's node affinity"


def _taints(machine: Machine, shape: Shape) -> str | None:
    found = taints.untolerated(machine.taints, shape.tolerations)
    if found is None:
        return None
    return found.told or f"has the taint {found}, which the pod does not tolerate"
