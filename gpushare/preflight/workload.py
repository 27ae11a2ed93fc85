"""Workload: the pods of a DaemonSet or Deployment, and the nodes on which they would run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import node as nodes
from gpushare.nodefilters import selectors, taints

# Kubernetes adds these tolerations to every pod of a DaemonSet.
_OF_DAEMONSETS = taints.tolerations(
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists"}
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A workload, by the spec of its pods."""

    pod: Mapping[str, Any]

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Workload:
        """Read a Deployment or DaemonSet."""
        return cls(((manifest.get("spec") or {}).get("template") or {}).get("spec") or {})

    def selects(self, node: Mapping[str, Any]) -> bool:
        """Whether its node selector and affinity allow the node."""
        labels = nodes.labels(node)
        wanted = self.pod.get("nodeSelector") or {}
        if any(labels.get(key) != value for key, value in wanted.items()):
            return False
        affinity = (self.pod.get("affinity") or {}).get("nodeAffinity") or {}
        terms = selectors.of_nodes(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
        return terms is None or any(term.matches(nodes.name(node), labels) for term in terms)

    def repelled(self, node: Mapping[str, Any]) -> taints.Taint | None:
        """Return the first taint of the node that a DaemonSet's pod of this kind does not tolerate."""
        tolerated = (*taints.tolerations(self.pod.get("tolerations")), *_OF_DAEMONSETS)
        return taints.untolerated(taints.repelling((node.get("spec") or {}).get("taints")), tolerated)

    def containers(self) -> Iterator[Mapping[str, Any]]:
        """Its containers, including init containers."""
        for key in ("initContainers", "containers"):
            yield from (container for container in self.pod.get(key) or () if isinstance(container, Mapping))

    def images(self) -> tuple[str, ...]:
        """The names of its images, without repetition."""
        return tuple(dict.fromkeys(str(container.get("image") or "") for container in self.containers()))

    def host_path(self, volume: str) -> str:
        """Return the host directory of the volume of this name, or ""."""
        for entry in self.pod.get("volumes") or ():
            if entry.get("name") == volume:
                return str((entry.get("hostPath") or {}).get("path") or "")
        return ""

    def environment(self) -> dict[str, str]:
        """The environment variables of its containers that have a literal value."""
        return {
            str(entry["name"]): str(entry["value"])
            for container in self.containers()
            for entry in container.get("env") or ()
            if entry.get("name") and entry.get("value") is not None
        }

    def capabilities(self) -> frozenset[str]:
        """The capabilities that its containers add."""
        return frozenset(
            str(name)
            for container in self.containers()
            for name in ((container.get("securityContext") or {}).get("capabilities") or {}).get("add") or ()
        )
