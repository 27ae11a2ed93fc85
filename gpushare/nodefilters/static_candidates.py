"""Static candidates: the nodes that take pods of one key whatever runs there, found for all nodes at once.

These are kube-scheduler's filters that look at the Node alone, in its own order.
"""

from __future__ import annotations

from gpushare import contract
from gpushare.nodefilters import taints
from gpushare.nodefilters.label_index import Rows
from gpushare.nodefilters.node_index import NodeIndex
from gpushare.nodefilters.node_spec import NodeSpec
from gpushare.nodefilters.pod_key import PodKey


class Opening:
    """True of the machines as they are when it is made."""

    def __init__(self, machines: NodeIndex, shape: PodKey) -> None:
        self._shape = shape
        self._tolerated = taints.Tolerated(shape.tolerations)
        tolerated = machines.tolerated(shape)
        self.rows: Rows = tolerated & machines.labels.having(contract.HOSTNAME_LABEL) & machines.selected(shape)

    def why_not(self, machine: NodeSpec) -> str:
        """Of a machine that is not among the rows: what is against it, as the rest of a sentence."""
        taint = self._tolerated.first_not(machine.taints)
        if taint is not None:
            return taint.phrase or f"has the taint {taint}, which the pod does not tolerate"
        if machine.hostname is None:
            return f"has no label {contract.HOSTNAME_LABEL}, by which a pod is pinned to its node"
        for key, value in self._shape.selector:
            if machine.labels.get(key) != value:
                return f"lacks the label {key}={value} of the pod's nodeSelector"
        return "does not match the pod's node affinity"
