"""NodeSpec: what the filters look at in a Node, read once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from gpushare import contract, node
from gpushare.nodefilters import pod_requests, taints
from gpushare.nodefilters.taints import Taint

NOT_READY: Final = "is not ready"
CORDONED: Final = "is cordoned"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSpec:
    """What there is of it; never what is used. `soft_taints`: taints by which the scheduler prefers other nodes.

    `allocatable` is None for a Node that no kubelet has described yet: nothing is known then, and nothing counted.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, int] | None = None
    soft_taints: tuple[Taint, ...] = ()

    @classmethod
    def from_manifest(cls, manifest: node.NodeJson) -> NodeSpec:
        """Read a Node.

        The scheduler does not look at conditions, but a node that is not ready is tainted within moments: the taint is
        taken as given, so that nothing is pinned there in between.
        """
        spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
        own_taints = []
        ready = node.readiness(manifest)
        if ready != "True":
            key = taints.UNREACHABLE if ready == "Unknown" else taints.NOT_READY
            own_taints.append(taints.Taint(key, "", taints.NO_SCHEDULE, NOT_READY))
        if spec.get("unschedulable"):
            own_taints.append(taints.Taint(taints.UNSCHEDULABLE, "", taints.NO_SCHEDULE, CORDONED))
        declared: Mapping[str, Any] | None = status.get("allocatable")
        return cls(
            name=node.name(manifest),
            labels=dict(node.labels(manifest)),
            taints=(*own_taints, *taints.repelling(spec.get("taints"))),
            allocatable=pod_requests.allocatable(declared) if declared else None,
            soft_taints=taints.soft(spec.get("taints")),
        )

    @property
    def hostname(self) -> str | None:
        """The label by which pods are pinned to it; None if it has none."""
        return self.labels.get(contract.HOSTNAME_LABEL)
