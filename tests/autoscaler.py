"""A small autoscaler by Cluster Autoscaler's documented rules, with the nodes that it starts.

Cluster Autoscaler itself cannot be built as a Go module. The rules are those of its FAQ
(https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md): it considers pods with the condition
PodScheduled=False, reason Unschedulable; it drops those that fit nodes that exist or start; for the rest it starts as
many nodes of the first group whose template fits as they need; and it removes nodes that have been empty for a while.
The nodes are made up: after `boot_seconds` a node has its resources and its GPUNode, as if its agent had started.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from gpushare import codec, contract, pod
from gpushare.nodefilters import NodeSpec, PodAffinity, PodInfo, PodKey, SchedulerCache
from lab import access
from tests import builders

NODES = "/api/v1/nodes"
MIN_PRIORITY = -10  # Cluster Autoscaler's --expendable-pods-priority-cutoff


@dataclasses.dataclass(frozen=True)
class NodeGroup:
    """Nodes that are alike. product: the label nvidia.com/gpu.product, if they have one."""

    name: str
    gpus: int = 1
    memory_gib: int = 80
    cpu: str = "8"
    max_nodes: int = 10
    labels: tuple[tuple[str, str], ...] = ()
    model: str = "NVIDIA A100-SXM4-80GB"

    def manifest(self, name: str) -> dict[str, Any]:
        """Return a Node of the group as it will be once its agent runs."""
        amounts = {
            "cpu": self.cpu,
            "memory": "64Gi",
            "pods": "110",
            contract.RESOURCE_PERCENT: str(100 * self.gpus),
            contract.RESOURCE_MEMORY: f"{self.memory_gib * self.gpus}Gi",
            contract.RESOURCE_IDLE: str(contract.IDLE_SHARES_PER_GPU * self.gpus),
        }
        ready = {"type": "Ready", "status": "True"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {contract.HOSTNAME_LABEL: name, "group": self.name, **dict(self.labels)},
            },
            "spec": {},
            "status": {"conditions": [ready], "allocatable": amounts, "capacity": amounts},
        }


@dataclasses.dataclass
class Autoscaler:
    """Starts and removes nodes in `step`. started: how many nodes it has started."""

    administrator: access.Access
    groups: tuple[NodeGroup, ...]
    boot_seconds: float = 0.0
    unneeded_seconds: float = 0.0
    started: int = 0
    _booting: dict[str, tuple[NodeGroup, float]] = dataclasses.field(default_factory=dict)
    _own: dict[str, NodeGroup] = dataclasses.field(default_factory=dict)
    _empty_since: dict[str, float] = dataclasses.field(default_factory=dict)

    def step(self) -> None:
        """Look at the cluster once."""
        now = time.monotonic()
        for name, (group, ready_at) in list(self._booting.items()):
            if now >= ready_at:
                self._finish(name, group)
                del self._booting[name]
        nodes = self.administrator.read(NODES)["items"]
        pods = [item for item in self.administrator.read("/api/v1/pods")["items"] if not pod.is_terminal(item)]
        self._scale_up(nodes, pods, now)
        self._scale_down(pods, now)

    def nodes(self) -> list[str]:
        """Return the nodes that there are of its groups."""
        return sorted(self._own)

    def _scale_up(self, nodes: list[dict[str, Any]], pods: list[dict[str, Any]], now: float) -> None:
        cache = SchedulerCache()
        for node in nodes:
            name = node["metadata"]["name"]
            # A node that starts counts as what it will be.
            cache.put_node_spec(
                name, NodeSpec.from_manifest(self._own[name].manifest(name) if name in self._booting else node)
            )
        for item in pods:
            if item["spec"].get("nodeName"):
                cache.put(pod.uid(item), PodInfo.from_manifest(item, item["spec"]["nodeName"]))
        names = [node["metadata"]["name"] for node in nodes]
        for item in filter(_is_unschedulable, pods):
            fitting = next((name for name in names if _fits(cache, item, name)), None)
            if fitting is None:
                fitting = self._start(cache, item, now)
                if fitting is None:
                    continue
                names.append(fitting)
            cache.put(pod.uid(item), PodInfo.from_manifest(item, fitting))

    def _start(self, cache: SchedulerCache, item: dict[str, Any], now: float) -> str | None:
        for group in self.groups:
            if sum(own is group for own in self._own.values()) >= group.max_nodes:
                continue
            name = f"{group.name}-{self.started}"
            cache.put_node_spec(name, NodeSpec.from_manifest(group.manifest(name)))
            if not _fits(cache, item, name):
                cache.put_node_spec(name, None)
                continue
            made = group.manifest(name)
            made["spec"] = {"taints": [{"key": contract.STARTUP_TAINTS[0], "effect": "NoSchedule"}]}
            self.administrator.create(NODES, {**made, "status": {}})
            self._own[name] = group
            self._booting[name] = group, now + self.boot_seconds
            self.started += 1
            return name
        return None

    def _finish(self, name: str, group: NodeGroup) -> None:
        """Be the node's kubelet, then its agent."""
        self.administrator.patch(f"{NODES}/{name}/status", {"status": group.manifest(name)["status"]})
        gpunode = builders.node(name, gpus=group.gpus, memory_gib=group.memory_gib, model=group.model)
        bare = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "metadata": {"name": name}}
        self.administrator.create(contract.GPUNODE_PATH, bare)
        status = {"status": codec.to_status(gpunode)}
        self.administrator.patch(f"{contract.GPUNODE_PATH}/{name}/status", status)
        self.administrator.patch(f"{NODES}/{name}", {"spec": {"taints": None}})

    def _scale_down(self, pods: list[dict[str, Any]], now: float) -> None:
        used = {item["spec"].get("nodeName") for item in pods}
        # gpushare pins a pod before the scheduler binds it.
        used |= {(item["spec"].get("nodeSelector") or {}).get(contract.HOSTNAME_LABEL) for item in pods}
        for name in list(self._own):
            if name in used or name in self._booting:
                self._empty_since.pop(name, None)
            elif now - self._empty_since.setdefault(name, now) >= self.unneeded_seconds:
                self.administrator.delete(f"{NODES}/{name}")
                self.administrator.delete(f"{contract.GPUNODE_PATH}/{name}")
                del self._own[name], self._empty_since[name]


def _fits(cache: SchedulerCache, item: dict[str, Any], name: str) -> bool:
    node_filter = cache.node_filter(PodKey.from_manifest(item), PodAffinity.from_manifest(item))
    return node_filter(name) is None


def _is_unschedulable(item: dict[str, Any]) -> bool:
    if item["spec"].get("nodeName") or pod.priority(item) < MIN_PRIORITY:
        return False
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(
        (each["type"], each["status"], each.get("reason")) == ("PodScheduled", "False", "Unschedulable")
        for each in conditions
    )
