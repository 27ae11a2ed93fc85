"""Node demand: how many whole GPUs are missing for the pods that wait, and which nodes should have them. Pure.

An autoscaler starts nodes for pods that the scheduler cannot bind, and never sees a gated pod. So the waiting pods are
packed, first fit, onto imaginary empty nodes, each with just the GPUs that its first pod needs. The placement engine
decides what fits. The packing never asks for more GPUs than the pods would need if each had its own, and never for more
than the bound. Pods whose node may never come are packed behind the others, so that they do not use up the bound.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Final

from gpushare import isolation, ledger, placement
from gpushare.allocation import Isolation, PodRef
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.nodefilters import PodKey, pod_requests
from gpushare.placement import NodeView, Placement
from gpushare.pod import PodJson
from gpushare.refusal import Refusal
from gpushare.request import Request

_ANY_CAPABILITY: Final = (99, 0)  # of a GPU that nobody has seen yet
_SHARED: Final = (Isolation.ARBITER, Isolation.MPS)
Kind = tuple[str, Request, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class GpuKind:
    """A kind of GPU that a new node could have.

    product: the Node label by which an autoscaler finds such nodes; empty if all nodes have this kind. cpu_milli,
    memory_bytes: what such a node has for each GPU; 0 if that is unknown, and then it counts as enough. max_gpus: of
    the largest known node, 0 without one.
    """

    gpu: Gpu
    product: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    max_gpus: int = 0

    @classmethod
    def of(cls, gpu: Gpu, product: str = "", *, cpu_milli: int = 0, memory_bytes: int = 0) -> GpuKind:
        """Return the kind of a GPU of the cluster, as if it were new."""
        new = dataclasses.replace(
            gpu.anonymous(),
            mode=Mode.FRACTIONAL,
            pending_mode=None,
            healthy=True,
            cordoned=False,
            closed="",
            unowned=False,
            link_group=None,
            numa_node=None,
        )
        return cls(new, product, cpu_milli, memory_bytes)

    @classmethod
    def named(cls, product: str, memory_bytes: int) -> GpuKind:
        """Return a kind that only its product label and memory are known of."""
        gpu = Gpu("", 0, product.replace("-", " "), memory_bytes, _ANY_CAPABILITY, isolations=_SHARED)
        return cls(gpu, product)

    @classmethod
    def unknown(cls, request: Request) -> GpuKind:
        """Return the smallest GPU that could hold one pod with this request."""
        sizes = (demand.share.memory.bytes or 0 for demand in request.demands)
        memory_bytes = max(request.constraints.min_memory_bytes, sum(sizes), 1 << 30)
        return cls(Gpu("", 0, "", memory_bytes, _ANY_CAPABILITY, isolations=_SHARED))


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that lacks room. selection: what it asks of a Node, as text.

    kinds: the kinds to try, in this order; they depend on request and selection alone. is_late: it has waited for a
    node for so long that none may come.
    """

    uid: str
    manifest: PodJson
    request: Request
    selection: str
    kinds: tuple[GpuKind, ...]
    is_late: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NodeDemand:
    """The GPUs that one node should have free, with CPU (milli-CPUs) and memory (bytes) for the pods that need them."""

    selection: str
    product: str
    gpus: int
    cpu_milli: int
    memory_bytes: int
    uids: tuple[str, ...]


class Unmet(enum.Enum):
    """Why no GPU is asked for a waiting pod."""

    BOUND = "bound"  # as many GPUs are asked for as may be
    NO_KIND = "no-kind"  # no known kind of GPU fits, even if it is empty


class Deferred(enum.Enum):
    """Why a pod is packed behind the others."""

    LATE = "late"  # no node came for it
    OVERSIZED = "oversized"  # no known node has as many GPUs as it needs


@dataclasses.dataclass(frozen=True, slots=True)
class Packing:
    """The demands; the pods without one, and those that were packed behind the others, by UID."""

    demands: tuple[NodeDemand, ...] = ()
    unmet: dict[str, Unmet] = dataclasses.field(default_factory=dict)
    deferred: dict[str, Deferred] = dataclasses.field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """The number of GPUs asked for."""
        return sum(demand.gpus for demand in self.demands)


class _Bin:
    """An imaginary node, and the pods that were packed onto it."""

    def __init__(self, number: int, kind: GpuKind, selection: str, gpus: int) -> None:
        self.kind, self.selection, self.gpus = kind, selection, gpus
        self.name = f"new-{number}"
        self._view = NodeView.from_node(_empty_node(self.name, kind.gpu, gpus))
        self.cpu_milli: list[int] = []
        self.memory_bytes: list[int] = []
        self.uids: list[str] = []

    def add(self, pod: WaitingPod, cpu_milli: int, memory_bytes: int, default: str) -> bool:
        """Pack the pod if it fits; the first pod may need more CPU and memory than the share of one GPU."""
        if self.uids and not (
            _fits(sum(self.cpu_milli) + cpu_milli, self.kind.cpu_milli * self.gpus)
            and _fits(sum(self.memory_bytes) + memory_bytes, self.kind.memory_bytes * self.gpus)
        ):
            return False
        chosen = place_on(self._view, pod.request, default)
        if isinstance(chosen, Refusal):
            return False
        entry = chosen.allocation(
            pod.request, allocation_id=f"new-{pod.uid}", pod=PodRef("", uid=pod.uid), reserved_until=None
        )
        self._view = NodeView.from_node(ledger.reserve(self._view.node, entry))
        self.cpu_milli.append(cpu_milli)
        self.memory_bytes.append(memory_bytes)
        self.uids.append(pod.uid)
        return True

    def demand(self) -> NodeDemand:
        """Return what to ask for. On a node of unknown size, the sum could be more than any node has."""
        total = sum if self.kind.cpu_milli else max
        amounts = total(self.cpu_milli), total(self.memory_bytes)
        return NodeDemand(self.selection, self.kind.product, self.gpus, *amounts, tuple(self.uids))


def pack(waiting: Iterable[WaitingPod], *, max_gpus: int, default: str = isolation.DEFAULT) -> Packing:
    """Pack the pods in this order, deferred ones last; `default`: the isolation of pods that name none."""
    waiting, bins = list(waiting), list[_Bin]()
    needed: dict[tuple[str, Request], tuple[GpuKind, int] | None] = {}
    for pod in waiting:
        if (pod.selection, pod.request) not in needed:
            needed[pod.selection, pod.request] = needed_gpus(pod, default)
    deferred = {
        pod.uid: why for pod in waiting if (why := _why_deferred(pod, needed[pod.selection, pod.request])) is not None
    }
    first: dict[Kind, int] = {}  # bins before this one have no room for such a pod, as they only fill up
    unmet: dict[str, Unmet] = {}
    refused: dict[Kind, Unmet] = {}
    for pod in sorted(waiting, key=lambda pod: pod.uid in deferred):
        cpu_milli, memory_bytes = _amounts(pod.manifest)
        kind = pod.selection, pod.request, cpu_milli, memory_bytes
        for number in range(first.get(kind, 0), len(bins)):
            one = bins[number]
            is_for_it = one.selection == pod.selection and one.kind in pod.kinds
            if is_for_it and one.add(pod, cpu_milli, memory_bytes, default):
                break
            first[kind] = number + 1
        else:
            if kind in refused:
                unmet[pod.uid] = refused[kind]
                continue
            left = max_gpus - sum(each.gpus for each in bins)
            fits = needed[pod.selection, pod.request]
            if fits is None or fits[1] > left:
                unmet[pod.uid] = refused[kind] = Unmet.NO_KIND if fits is None else Unmet.BOUND
                continue
            made = _Bin(len(bins), fits[0], pod.selection, fits[1])
            made.add(pod, cpu_milli, memory_bytes, default)
            bins.append(made)
    return Packing(tuple(one.demand() for one in bins), unmet, deferred)


def needed_gpus(pod: WaitingPod, default: str = isolation.DEFAULT) -> tuple[GpuKind, int] | None:
    """Return the kind to ask for, and how many GPUs the pod needs on an empty node; None if no kind fits.

    That is the first kind that fits and has nodes that are large enough, as far as is known; else the first that fits.
    """
    fewest = max((demand.gpus for demand in pod.request.demands), default=1)
    most = sum(demand.gpus for demand in pod.request.demands)
    fitting = []
    for kind in pod.kinds:
        for gpus in range(fewest, most + 1):
            view = NodeView.from_node(_empty_node("new", kind.gpu, gpus))
            if isinstance(place_on(view, pod.request, default), Placement):
                fitting.append((kind, gpus))
                break
    large = (found for found in fitting if not _is_oversized(*found))
    return next(large, None) or next(iter(fitting), None)


def _why_deferred(pod: WaitingPod, needed: tuple[GpuKind, int] | None) -> Deferred | None:
    if needed is None:
        return None
    return Deferred.OVERSIZED if _is_oversized(*needed) else Deferred.LATE if pod.is_late else None


def _is_oversized(kind: GpuKind, gpus: int) -> bool:
    return 0 < kind.max_gpus < gpus


def place_on(view: NodeView, request: Request, default: str) -> Placement | Refusal:
    """Place a pod on one node, whatever the rest of the cluster is like; `default`: as in `pack`."""
    return isolation.place(request, default, lambda each: placement.place([view], each))


def _empty_node(name: str, gpu: Gpu, gpus: int) -> GpuNode:
    return GpuNode(name, gpus=tuple(dataclasses.replace(gpu, uuid=f"{name}-{at}", index=at) for at in range(gpus)))


def _fits(amount: int, room: int) -> bool:
    return room == 0 or amount <= room


def _amounts(manifest: PodJson) -> tuple[int, int]:
    """Return the milli-CPUs and bytes that the pod requests."""
    amounts = dict(PodKey.from_manifest(manifest).amounts)
    return amounts.get(pod_requests.CPU, 0), amounts.get(pod_requests.MEMORY, 0)


def usable(kinds: Sequence[GpuKind], request: Request) -> tuple[GpuKind, ...]:
    """Return the kinds to try; a pod that names no model may also get a GPU of which nothing is known."""
    if kinds or request.constraints.models:
        return tuple(kinds)
    return (GpuKind.unknown(request),)
