"""PodInfo: a pod on a node, bound or assumed; NodeInfo: all pods of a node, and what they use of it together."""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
from collections.abc import Hashable
from typing import Final

from gpushare import pod
from gpushare.nodefilters import pod_affinity, pod_requests, ports, volumes

MAX_SHARED: Final = 2048  # characters of a part, written out


@dataclasses.dataclass(frozen=True, slots=True)
class PodInfo:
    """What is kept of a pod: little, as there may be very many of them. Equal parts are shared between pods.

    `amounts`: resource and amount, as `pod_requests.requests`. `labels`: flat. `repels`: its required anti-affinity.
    `leaves`: it is being deleted, which topology spread looks at. `mounts`: what may have to be attached to its node.
    """

    node: str
    namespace: str
    amounts: tuple[tuple[str, int], ...] = ()
    ports: tuple[ports.Port, ...] = ()
    labels: tuple[str, ...] = ()
    repels: tuple[pod_affinity.Term, ...] = ()
    leaves: bool = False
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
            repels=_shared(pod_affinity.anti_affinity(manifest)),
            leaves=metadata.get("deletionTimestamp") is not None,
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
