"""A small autoscaler by Cluster Autoscaler's documented rules, with the nodes that it starts.

Cluster Autoscaler itself cannot be built as a Go module. The rules are those of its FAQ
(https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md): it considers pods with the condition
PodScheduled=False, reason Unschedulable; it drops those that fit nodes that exist or start; for the rest it starts as
many nodes of the first group whose template fits as they need; and it removes nodes that have been empty for a while.
Of a ProvisioningRequest of the class best-effort-atomic-scale-up it accepts what it can read, starts all nodes that are
missing from one group or none, books them for ten minutes, and fails when ValidUntilSeconds are over.
The nodes are made up: after `boot_seconds` a node has its resources, a DaemonSet's pod and its GPUNode, as if its agent
had started.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterator
from typing import Any

from gpushare import codec, contract, pod, quantity
from gpushare.nodefilters import NodeSpec, PodAffinity, PodInfo, PodKey, SchedulerCache
from lab import access
from tests import builders
from webhook.controllers.demand.provisioning_requests import PATH as REQUESTS
from webhook.controllers.demand.provisioning_requests import TEMPLATES_PATH as TEMPLATES

NODES = "/api/v1/nodes"
BOOKED_SECONDS = 600.0
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
    """Starts and removes nodes in `step`. namespace: of the DaemonSet. started: how many nodes it has started.

    provisions: whether it reads ProvisioningRequests. ahead_seconds: by how much its clock is ahead.
    """

    administrator: access.Access
    namespace: str
    groups: tuple[NodeGroup, ...]
    boot_seconds: float = 0.0
    unneeded_seconds: float = 0.0
    started: int = 0
    provisions: bool = False
    ahead_seconds: float = 0.0
    _booked: dict[str, list[tuple[dict[str, Any], str]]] = dataclasses.field(default_factory=dict)
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
        cache = self._simulated(nodes, pods)
        self._scale_up(cache, [node["metadata"]["name"] for node in nodes], pods, now)
        if self.provisions:
            self._provision(cache, [node["metadata"]["name"] for node in nodes], now)
        self._scale_down(pods, now)

    def nodes(self) -> list[str]:
        """Return the nodes that there are of its groups."""
        return sorted(self._own)

    def _simulated(self, nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> SchedulerCache:
        """Return the nodes and what runs there; a node that starts counts as what it will be."""
        cache = SchedulerCache()
        for node in nodes:
            name = node["metadata"]["name"]
            cache.put_node_spec(
                name, NodeSpec.from_manifest(self._own[name].manifest(name) if name in self._booting else node)
            )
        for name in self._booting:
            self._count_daemon(cache, name)
        for item in pods:
            if item["spec"].get("nodeName"):
                cache.put(pod.uid(item), PodInfo.from_manifest(item, item["spec"]["nodeName"]))
        return cache

    def _scale_up(self, cache: SchedulerCache, names: list[str], pods: list[dict[str, Any]], now: float) -> None:
        for item in filter(_is_unschedulable, pods):
            fitting = next((name for name in names if _fits(cache, item, name)), None)
            if fitting is None:
                group = next((group for group in self.groups if self._needed(group, [item])), None)
                if group is None:
                    continue
                fitting = self._start(cache, group, now)
                names.append(fitting)
            cache.put(pod.uid(item), PodInfo.from_manifest(item, fitting))

    def _needed(self, group: NodeGroup, pods: list[dict[str, Any]]) -> list[int] | None:
        """Return on which of the group's new nodes each pod would be; None if it cannot have enough of them."""
        cache, places = SchedulerCache(), list[int]()
        left = group.max_nodes - sum(own is group for own in self._own.values())
        for number, item in enumerate(pods):
            there = range(max(places, default=-1) + 1)
            place = next((each for each in there if _fits(cache, item, str(each))), len(there))
            if place == len(there):
                spec = group.manifest(f"{group.name}-{self.started + place}")
                cache.put_node_spec(str(place), NodeSpec.from_manifest(spec))
                self._count_daemon(cache, str(place))
                if place >= left or not _fits(cache, item, str(place)):
                    return None
            cache.put(number, PodInfo.from_manifest(item, str(place)))
            places.append(place)
        return places

    def _start(self, cache: SchedulerCache, group: NodeGroup, now: float) -> str:
        name = f"{group.name}-{self.started}"
        made = group.manifest(name)
        cache.put_node_spec(name, NodeSpec.from_manifest(made))
        self._count_daemon(cache, name)
        made["spec"] = {"taints": [{"key": contract.STARTUP_TAINTS[0], "effect": "NoSchedule"}]}
        self.administrator.create(NODES, {**made, "status": {}})
        self._own[name] = group
        self._booting[name] = group, now + self.boot_seconds
        self.started += 1
        return name

    def _provision(self, cache: SchedulerCache, names: list[str], now: float) -> None:
        """Answer ProvisioningRequests; capacity booked for one is unavailable to the others."""
        requests = {pod.uid(item): item for item in self.administrator.read(REQUESTS)["items"]}
        self._booked = {uid: places for uid, places in self._booked.items() if uid in requests}
        for uid, places in self._booked.items():
            for number, (item, name) in enumerate(places):
                cache.put((uid, number), PodInfo.from_manifest(item, name))
        for uid, request in requests.items():
            known = {each["type"]: each for each in request.get("status", {}).get("conditions", ())}
            if "Failed" in known or "BookingExpired" in known:
                continue
            if known.get("Provisioned", {}).get("status") == "True":
                if self._age(known["Provisioned"]["lastTransitionTime"]) >= BOOKED_SECONDS:
                    self._booked.pop(uid, None)
                    self._answer(request, known, "BookingExpired", "True", "BookingExpired", "Capacity is not booked")
                continue
            pods = list(self._pods_of(request))
            if not pods:
                continue  # its PodTemplates are not there yet
            if "Accepted" not in known:
                self._answer(request, known, "Accepted", "True", "Accepted", "ProvisioningRequest is accepted")
            else:
                self._decide(request, known, pods, cache, names, now)

    def _decide(
        self,
        request: dict[str, Any],
        known: dict[str, Any],
        pods: list[dict[str, Any]],
        cache: SchedulerCache,
        names: list[str],
        now: float,
    ) -> None:
        places, left = list[tuple[dict[str, Any], str]](), list[dict[str, Any]]()
        for number, item in enumerate(pods):
            fitting = next((name for name in names if _fits(cache, item, name)), None)
            if fitting is None:
                left.append(item)
            else:
                places.append((item, fitting))
                cache.put((pod.uid(request), number), PodInfo.from_manifest(item, fitting))
        for group in self.groups:
            needed = self._needed(group, left)
            if needed is not None:
                started = [self._start(cache, group, now) for _ in range(max(needed, default=-1) + 1)]
                places += [(item, started[place]) for item, place in zip(left, needed, strict=True)]
                self._booked[pod.uid(request)] = places
                self._answer(request, known, "Provisioned", "True", "Provisioned", "Provisioning is successful")
                return
        why = "CapacityIsNotFound", "Capacity is not found, CA will try to find it later."
        valid = float(request["spec"].get("parameters", {}).get("ValidUntilSeconds", "inf"))
        if self._age(request["metadata"]["creationTimestamp"]) >= valid:
            self._answer(request, known, "Failed", "True", "CapacityIsNotFound", "the request is no longer valid")
        elif known.get("Provisioned", {}).get("reason") != why[0]:
            self._answer(request, known, "Provisioned", "False", *why)

    def _pods_of(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        templates = {item["metadata"]["name"]: item["template"] for item in self.administrator.read(TEMPLATES)["items"]}
        for wanted in request["spec"]["podSets"]:
            template = templates.get(wanted["podTemplateRef"]["name"])
            if template is None:
                continue
            for number in range(wanted["count"]):
                name = f"{request['metadata']['name']}-{number}"
                metadata = {"namespace": contract.DEMAND_NAMESPACE, "name": name, "uid": name}
                yield {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], **metadata}}

    def _age(self, moment: str) -> float:
        return time.time() + self.ahead_seconds - quantity.parse_time(moment)

    def _answer(
        self, request: dict[str, Any], known: dict[str, Any], kind: str, status: str, reason: str, message: str
    ) -> None:
        moment = datetime.datetime.fromtimestamp(time.time() + self.ahead_seconds, datetime.UTC)
        made = {"type": kind, "status": status, "reason": reason, "message": message}
        known[kind] = {**made, "lastTransitionTime": moment.strftime("%Y-%m-%dT%H:%M:%SZ")}
        path = f"{REQUESTS}/{request['metadata']['name']}/status"
        self.administrator.patch(path, {"status": {"conditions": list(known.values())}})

    def _finish(self, name: str, group: NodeGroup) -> None:
        """Be the node's kubelet, then its agent."""
        self.administrator.patch(f"{NODES}/{name}/status", {"status": group.manifest(name)["status"]})
        self.administrator.create(self._daemons, self._daemon(name))
        gpunode = builders.node(name, gpus=group.gpus, memory_gib=group.memory_gib, model=group.model)
        bare = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "metadata": {"name": name}}
        self.administrator.create(contract.GPUNODE_PATH, bare)
        status = {"status": codec.to_status(gpunode)}
        self.administrator.patch(f"{contract.GPUNODE_PATH}/{name}/status", status)
        self.administrator.patch(f"{NODES}/{name}", {"spec": {"taints": None}})

    @property
    def _daemons(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def _daemon(self, node: str) -> dict[str, Any]:
        made = builders.pod(f"daemon-{node}", namespace=self.namespace, spec={"nodeName": node})
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m", "memory": "256Mi"}}
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "daemon", "uid": "daemon", "controller": True}
        made["metadata"]["ownerReferences"] = [owner]
        return made

    def _count_daemon(self, cache: SchedulerCache, node: str) -> None:
        cache.put(("daemon", node), PodInfo.from_manifest(self._daemon(node), node))

    def _scale_down(self, pods: list[dict[str, Any]], now: float) -> None:
        pods = [item for item in pods if not _is_daemon(item)]
        used = {item["spec"].get("nodeName") for item in pods}
        # gpushare pins a pod before the scheduler binds it.
        used |= {(item["spec"].get("nodeSelector") or {}).get(contract.HOSTNAME_LABEL) for item in pods}
        used |= {name for places in self._booked.values() for _, name in places}
        for name in list(self._own):
            if name in used or name in self._booting:
                self._empty_since.pop(name, None)
            elif now - self._empty_since.setdefault(name, now) >= self.unneeded_seconds:
                self.administrator.delete(f"{self._daemons}/daemon-{name}")
                self.administrator.delete(f"{NODES}/{name}")
                self.administrator.delete(f"{contract.GPUNODE_PATH}/{name}")
                del self._own[name], self._empty_since[name]


def _fits(cache: SchedulerCache, item: dict[str, Any], name: str) -> bool:
    node_filter = cache.node_filter(PodKey.from_manifest(item), PodAffinity.from_manifest(item))
    return node_filter(name) is None


def _is_daemon(item: dict[str, Any]) -> bool:
    owner = pod.controller(item)
    return owner is not None and owner.kind == "DaemonSet"


def _is_unschedulable(item: dict[str, Any]) -> bool:
    if item["spec"].get("nodeName") or pod.priority(item) < MIN_PRIORITY:
        return False
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(
        (each["type"], each["status"], each.get("reason")) == ("PodScheduled", "False", "Unschedulable")
        for each in conditions
    )
