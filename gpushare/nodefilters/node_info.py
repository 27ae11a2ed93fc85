"""Nodes: a Node, the pods on it, bound or assumed, and whether it has room for one more.

`RULES` are kube-scheduler's filters (Kubernetes 1.36) that depend on a node's pods, in the scheduler's order. Filters
on the Node alone run before them, for all nodes at once (`StaticCandidates`).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from gpushare import contract, node, pod
from gpushare.nodefilters import pod_key, pod_requests, taints, volumes
from gpushare.nodefilters.pod_key import PodKey
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
            taints=(*own_taints, *taints.of_effect(spec.get("taints"), *taints.REPELLING)),
            allocatable=pod_requests.allocatable(declared) if declared else None,
            soft_taints=taints.of_effect(spec.get("taints"), "PreferNoSchedule"),
        )

    @property
    def hostname(self) -> str | None:
        """The hostname label, by which pods are pinned to the node; None if it has none."""
        return self.labels.get(contract.HOSTNAME_LABEL)


MAX_SHARED: Final = 2048  # characters of a part's repr
_DAEMONS: Final = frozenset({"DaemonSet", "Node"})  # a Node owns its static pods


@dataclasses.dataclass(frozen=True, slots=True)
class PodInfo:
    """The facts about a running pod that the filters need. Equal parts are shared between pods, because there may be
    many.

    `amounts`: requested resources (`pod_requests.requests`). `labels`: flat. `anti_affinity`: required anti-affinity.
    `is_terminating`: being deleted, which topology spread considers. `mounts`: volumes that may need attaching.
    `is_daemon`: each node like this one has such a pod.
    """

    node: str
    namespace: str
    amounts: tuple[tuple[str, int], ...] = ()
    ports: tuple[pod_requests.Port, ...] = ()
    labels: tuple[str, ...] = ()
    anti_affinity: tuple[pod_key.Term, ...] = ()
    is_terminating: bool = False
    mounts: tuple[volumes.VolumeUse, ...] = ()
    is_daemon: bool = False

    @classmethod
    def from_manifest(cls, manifest: pod.PodJson, node: str) -> PodInfo:
        """Read a pod that runs on, or is assigned to, a node."""
        metadata, owner = manifest.get("metadata") or {}, pod.controller(manifest)
        requested = pod_requests.requests(manifest, running=True)
        return cls(
            node=sys.intern(node),
            namespace=sys.intern(pod.namespaced_name(manifest)[0] or "default"),
            amounts=_shared(tuple(sorted((sys.intern(name), amount) for name, amount in requested.items()))),
            ports=_shared(pod_requests.host_ports(manifest)),
            labels=_shared(pod_key.flat_labels(manifest)),
            anti_affinity=_shared(pod_key.anti_affinity(manifest)),
            is_terminating=metadata.get("deletionTimestamp") is not None,
            mounts=volumes.mounts(manifest),
            is_daemon=owner is not None and owner.kind in _DAEMONS,
        )


def _shared(part: tuple[Hashable, ...]) -> tuple:  # type: ignore[type-arg]
    """Return the same object for equal parts. The cache outlives the pods, so only small parts are shared."""
    return _same(part) if part and len(repr(part)) <= MAX_SHARED else part


@functools.lru_cache(maxsize=16384)
def _same(part: tuple[Hashable, ...]) -> tuple:  # type: ignore[type-arg]
    return part


class NodeInfo:
    """Usage totals of a node, updated per pod so that filters never iterate over pods. daemon_…: of daemon pods."""

    __slots__ = ("amounts", "count", "daemon_amounts", "daemon_count", "ports")

    def __init__(self) -> None:
        self.count = self.daemon_count = 0
        self.amounts: collections.Counter[str] = collections.Counter()
        self.daemon_amounts: collections.Counter[str] = collections.Counter()
        self.ports = pod_requests.Ports()

    def without(self, pod_info: PodInfo) -> NodeInfo:
        """Return a copy that does not count this pod."""
        rest = NodeInfo()
        rest.count, rest.amounts, rest.ports = self.count, self.amounts.copy(), self.ports.copy()
        rest.daemon_count, rest.daemon_amounts = self.daemon_count, self.daemon_amounts.copy()
        rest.change(pod_info, -1)
        return rest

    def change(self, pod_info: PodInfo, sign: int) -> None:
        """Count one more pod on the node, or (-1) one less."""
        self.count += sign
        for name, amount in pod_info.amounts:
            self.amounts[name] += sign * amount
        if pod_info.is_daemon:
            self.daemon_count += sign
            for name, amount in pod_info.amounts:
                self.daemon_amounts[name] += sign * amount
        for port in pod_info.ports:
            self.ports.change(port, sign)


EMPTY: Final = NodeInfo()
Rule = Callable[[NodeSpec, NodeInfo, PodKey], str | None]
_UNITS: Final = {
    pod_requests.CPU: "CPUs",
    pod_requests.MEMORY: "memory",
    pod_requests.EPHEMERAL_STORAGE: "ephemeral storage",
}


def why_no_room(node: NodeSpec, there: NodeInfo, shape: PodKey) -> str | None:
    """Return why the node cannot take the pod, as a clause with numbers ("has 500m of 4 CPUs free"); None if it can.

    gpushare's own resources are checked by `why_not_offered`.
    """
    for rule in RULES:
        reason = rule(node, there, shape)
        if reason is not None:
            return reason
    return None


def _shortage(node: NodeSpec, there: NodeInfo, amounts: tuple[tuple[str, int], ...]) -> str | None:
    """Return the first amount that the node lacks, as a clause."""
    if node.allocatable is None:
        return None
    for name, asked in amounts:
        most = node.allocatable.get(name, 0)
        if asked > most and name in _UNITS:
            whole, needed = pod_requests.format_amount(name, most), pod_requests.format_amount(name, asked)
            return f"has {whole} {_UNITS[name]} in total, {needed} {_are(name, asked)} requested"
        free = most - there.amounts.get(name, 0)
        if asked > free:
            left, whole, needed = (pod_requests.format_amount(name, amount) for amount in (max(0, free), most, asked))
            return f"has {left} of {whole} {_UNITS.get(name, name)} free, {needed} {_are(name, asked)} requested"
    return None


def _are(name: str, amount: int) -> str:
    return "is" if (name, amount) == (pod_requests.CPU, 1000) else "are"


def why_not_offered(node: NodeSpec, there: NodeInfo, amounts: tuple[tuple[str, int], ...]) -> str | None:
    """Return which of gpushare's resources the kubelet does not offer yet although the ledger has room, as a clause."""
    for name, asked in amounts:
        if asked and node.allocatable is not None and not node.allocatable.get(name, 0):
            return f"has free GPUs but no running agent: its kubelet offers no {name}"
    reason = _shortage(node, there, amounts)
    return None if reason is None else f"{reason}; its GPUs have more, but its agent does not offer it yet"


def _ports(_node: NodeSpec, there: NodeInfo, shape: PodKey) -> str | None:
    taken = there.ports.conflict(shape.ports) if shape.ports else None
    return None if taken is None else f"has host port {taken[2]}/{taken[1]} in use, which the pod requests"


def _pods(node: NodeSpec, there: NodeInfo, _shape: PodKey) -> str | None:
    if node.allocatable is None:
        return None
    most = node.allocatable.get(pod_requests.PODS, 0)
    return None if there.count < most else f"has {there.count} pods, and its maximum is {most}"


RULES: Final[tuple[Rule, ...]] = (_ports, _pods, lambda node, there, shape: _shortage(node, there, shape.amounts))
