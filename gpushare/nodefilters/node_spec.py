"""NodeSpec: the facts about a Node that the filters need."""

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
    """A Node's labels, taints and allocatable amounts, without usage. `soft_taints`: taints with PreferNoSchedule.

    `allocatable` is None until a kubelet has registered the node; its amounts are not checked then.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, int] | None = None
    soft_taints: tuple[Taint, ...] = ()

    @classmethod
    def from_manifest(cls, manifest: node.NodeJson) -> NodeSpec:
        """Read a Node.

        The scheduler ignores conditions, but the node controller soon taints a node that is not ready. That taint is
        added here, so that no pod is pinned to the node in the meantime.
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
        """The hostname label, by which pods are pinned to the node; None if it has none."""
        return self.labels.get(contract.HOSTNAME_LABEL)
