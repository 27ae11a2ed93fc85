"""PodInfo: a pod on a node, bound or assumed; NodeInfo: all pods of a node, and what they use of it together."""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable
from typing import Final

from gpushare import pod
from gpushare.nodefilters import pod_affinity, pod_requests, ports, volumes
from gpushare.nodefilters.node_spec import NodeSpec
from gpushare.nodefilters.pod_key import PodKey

MAX_SHARED: Final = 2048  # characters of a part, written out


@dataclasses.dataclass(frozen=True, slots=True)
class PodInfo:
    """What is kept of a pod: little, as there may be very many of them. Equal parts are shared between pods.

    `amounts`: resource and amount, as `pod_requests.requests`. `labels`: flat. `anti_affinity`: its required anti-affinity.
    `leaves`: it is being deleted, which topology spread looks at. `mounts`: what may have to be attached to its node.
    """

    node: str
    namespace: str
    amounts: tuple[tuple[str, int], ...] = ()
    ports: tuple[ports.Port, ...] = ()
    labels: tuple[str, ...] = ()
    anti_affinity: tuple[pod_affinity.Term, ...] = ()
    is_terminating: bool = False
    mounts: tuple[volumes.VolumeUse, ...] = ()

    @classmethod
    def from_manifest(cls, manifest: pod.PodJson, node: str) -> PodInfo:
        """That of a pod on, or bound for, a node."""
        metadata = manifest.get("metadata") or {}
        requested = pod_requests.requests(manifest, running=True)
        return cls(
            node=sys.intern(node),
            namespace=sys.intern(pod.namespaced_name(manifest)[0] or "default"),
            amounts=_shared(tuple(sorted((sys.intern(name), amount) for name, amount in requested.items()))),
            ports=_shared(ports.host_ports(manifest)),
            labels=_shared(pod_affinity.flat_labels(manifest)),
            anti_affinity=_shared(pod_affinity.anti_affinity(manifest)),
            is_terminating=metadata.get("deletionTimestamp") is not None,
            mounts=volumes.mounts(manifest),
        )


def _shared(part: tuple[Hashable, ...]) -> tuple:  # type: ignore[type-arg]
    """The same object for equal parts, as most pods have. What is kept for that outlives the pods, so it is small."""
    return _same(part) if part and len(repr(part)) <= MAX_SHARED else part


@functools.lru_cache(maxsize=16384)
def _same(part: tuple[Hashable, ...]) -> tuple:  # type: ignore[type-arg]
    return part


class NodeInfo:
    """The sums are kept as pods come and go, so that filtering looks at none of the pods."""

    __slots__ = ("amounts", "count", "ports")

    def __init__(self) -> None:
        self.count = 0
        self.amounts: collections.Counter[str] = collections.Counter()
        self.ports = ports.Ports()

    def add(self, pod_info: PodInfo) -> None:
        """Count one more pod on the node."""
        self._change(pod_info, 1)

    def remove(self, pod_info: PodInfo) -> None:
        """Count the pod no more."""
        self._change(pod_info, -1)

    def without(self, pod_info: PodInfo) -> NodeInfo:
        """The same, as if one were not there."""
        rest = NodeInfo()
        rest.count, rest.amounts, rest.ports = self.count, self.amounts.copy(), self.ports.copy()
        rest.remove(pod_info)
        return rest

    def _change(self, pod_info: PodInfo, sign: int) -> None:
        self.count += sign
        for name, amount in pod_info.amounts:
            self.amounts[name] += sign * amount
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
    """The rest of a sentence, with numbers ("has 500m of 4 CPUs free, 2 are asked for"); None if there is room.

    What our ledger counts as well is left out: see `withheld`.
    """
    for rule in RULES:
        reason = rule(node, there, shape)
        if reason is not None:
            return reason
    return None


def _shortage(node: NodeSpec, there: NodeInfo, amounts: tuple[tuple[str, int], ...]) -> str | None:
    """The first of the amounts that the node has not free, as the rest of a sentence."""
    if node.allocatable is None:
        return None
    for name, asked in amounts:
        most = node.allocatable.get(name, 0)
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


def why_not_offered(node: NodeSpec, there: NodeInfo, amounts: tuple[tuple[str, int], ...]) -> str | None:
    """The same of what our ledger counts as well, and has: it is the agent that has not told the kubelet of it."""
    for name, asked in amounts:
        if asked and node.allocatable is not None and not node.allocatable.get(name, 0):
            return f"has free GPUs and no agent that runs: its kubelet offers no {name}"
    reason = _shortage(node, there, amounts)
    return None if reason is None else f"{reason}; its GPUs have more, which its agent has yet to offer"


def _ports(_node: NodeSpec, there: NodeInfo, shape: PodKey) -> str | None:
    taken = there.ports.conflict(shape.ports) if shape.ports else None
    return None if taken is None else f"has its port {taken[2]}/{taken[1]} in use, which the pod wants of the host"


def _pods(node: NodeSpec, there: NodeInfo, _shape: PodKey) -> str | None:
    if node.allocatable is None:
        return None
    most = node.allocatable.get(pod_requests.PODS, 0)
    return None if there.count < most else f"has {there.count} pods, and room for no more than {most}"


def _amounts(node: NodeSpec, there: NodeInfo, shape: PodKey) -> str | None:
    return _shortage(node, there, shape.amounts)


RULES: Final[tuple[Rule, ...]] = (_ports, _pods, _amounts)
