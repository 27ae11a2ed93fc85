"""Demand kinds: which kinds of GPU a new node could have for a pod, and on which nodes a demand pod fits already.

A new node is taken to be like the nodes of the same pool: those that the template and the pod's node selector, affinity
and tolerations allow. Kinds that the administrator has named come first. Rules that a demand pod cannot carry, such as
inter-pod affinity or the zone of a volume, could make new nodes useless one after the other. So a pod that an empty
node of its pool does not take for such a reason asks for none, for an hour after that node is gone.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, pod
from gpushare.gpunode import FACTS, Gpu, Mode
from gpushare.nodefilters import SchedulerCache, pod_requests, taints
from gpushare.placement import NodeView, Placement
from gpushare.pod import PodJson
from gpushare.request import Request
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import GpuKind, NodeDemand
from webhook.controllers.demand import demand_pods
from webhook.store.chooser import Chooser

EMPTY_NODES_TRIED: Final = 4
REMEMBERED_SECONDS: Final = 3600.0
# Taints that nodes have for a while; a new node of the pool will not.
_PASSING: Final = (
    *(taints.UNSCHEDULABLE, taints.NOT_READY, taints.UNREACHABLE, *contract.STARTUP_TAINTS),
    *("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class PoolKind:
    """A kind of GPU, and the nodes that have it."""

    kind: GpuKind
    nodes: tuple[str, ...]


class PoolMemory:
    """The kinds of GPU that pools had, and the pods that their empty nodes did not take, for an hour each.

    Without it, nodes that are of no use would be removed as empty, and asked for again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, Gpu, str], tuple[float, GpuKind]] = {}  # until when; by selection, GPU, product
        self._useless: dict[Hashable, tuple[float, str]] = {}  # until when, and why

    def forget_old(self) -> None:
        """Drop what is older than an hour."""
        now = self._clock()
        self._kinds = {key: known for key, known in self._kinds.items() if now < known[0]}
        self._useless = {key: known for key, known in self._useless.items() if now < known[0]}

    def former_kinds(self, selection: str, present: Sequence[GpuKind]) -> list[GpuKind]:
        """Record the kinds that a selection allows now; return those that it allowed before, and now no more."""
        until = self._clock() + REMEMBERED_SECONDS
        now = {(selection, kind.gpu, kind.product): (until, kind) for kind in present}
        self._kinds |= now
        return [kind for key, (_, kind) in self._kinds.items() if key[0] == selection and key not in now]

    def unhelpful(self, manifest: PodJson, request: Request, verdict: str | None) -> str | None:
        """Record a verdict of `unhelpful`; without one, return the last."""
        if verdict is None and not self._useless:
            return None
        spec = json.dumps(_without_amounts(manifest)["spec"], sort_keys=True)
        key = pod.namespaced_name(manifest)[0], spec, request
        if verdict:
            self._useless[key] = self._clock() + REMEMBERED_SECONDS, verdict
        elif verdict is not None:
            self._useless.pop(key, None)
        return self._useless[key][1] if key in self._useless else None


def of_cluster(views: Iterable[NodeView], chooser: Chooser) -> tuple[PoolKind, ...]:
    """Return the kinds that the cluster has, by the size of their nodes."""
    new: dict[tuple[object, ...], Gpu] = {}  # by the facts of a GPU that is in use
    nodes: dict[GpuKind, list[str]] = collections.defaultdict(list)
    for view in views:
        name, gpus = view.node.name, collections.Counter[Gpu]()
        if chooser.cache.node_spec(name) is None:
            continue  # the node is gone, and its GPUNode soon will be
        for gpu in view.node.gpus:
            if gpu.mode is Mode.FRACTIONAL:
                facts = FACTS(gpu)
                if facts not in new:
                    new[facts] = GpuKind.of(gpu).gpu
                gpus[new[facts]] += 1
        product = chooser.labels(name).get(demand_pods.PRODUCT_LABEL, "")
        room = _room_per_gpu(chooser.cache, name, len(view.node.gpus))
        for gpu, count in gpus.items():
            nodes[GpuKind(gpu, product, *room, max_gpus=count)].append(name)
    return tuple(PoolKind(kind, tuple(names)) for kind, names in nodes.items())


def of_selection(
    pools: Sequence[PoolKind], selection: str, template: Mapping[str, Any], chooser: Chooser
) -> list[GpuKind]:
    """Return the kinds of the nodes that the selection allows, the most common first, also of cordoned nodes.

    Of nodes that differ only in size, the smallest counts: what fits there fits the others.
    """
    spec = demand_pods.selecting(selection, template)
    tolerations = [*spec.get("tolerations", ()), *({"key": key, "operator": "Exists"} for key in _PASSING)]
    reason_against = chooser.node_filter({"spec": {**spec, "tolerations": tolerations}})
    alike: dict[tuple[Gpu, str], list[PoolKind]] = collections.defaultdict(list)
    for pool in pools:
        names = tuple(name for name in pool.nodes if reason_against(name) is None)
        if names:
            alike[pool.kind.gpu, pool.kind.product].append(PoolKind(pool.kind, names))
    by_size = sorted(alike.items(), key=lambda item: (-sum(len(pool.nodes) for pool in item[1]), repr(item[0])))
    return [
        GpuKind(
            gpu,
            product,
            cpu_milli=min((pool.kind.cpu_milli for pool in several if pool.kind.cpu_milli), default=0),
            memory_bytes=min((pool.kind.memory_bytes for pool in several if pool.kind.memory_bytes), default=0),
            max_gpus=max(pool.kind.max_gpus for pool in several),
        )
        for (gpu, product), several in by_size
    ]


def of_pod(
    own: Sequence[GpuKind],
    former: Sequence[GpuKind],
    named: Sequence[GpuKind],
    products: frozenset[str],
    request: Request,
    selection: str,
    template: Mapping[str, Any],
) -> tuple[GpuKind, ...]:
    """Return the kinds to try for a pod: those that the administrator has named, then others that are known.

    own, former: of the nodes that the selection allows, or has allowed. products: all of the cluster and those that are
    named; if they differ, they tell kinds apart, unless all such nodes are gone: a label that the agents wrote may be
    unknown to an autoscaler. A selection of some nodes only may exclude named kinds, so those that are known to have
    such nodes come before.
    """
    known = (*own, *former)
    present, order = {kind.product for kind in known}, {kind.product: place for place, kind in enumerate(named)}
    prefers_present = demand_pods.narrows(selection) and not present.isdisjoint(order)

    def rank(kind: GpuKind) -> tuple[bool, bool, int]:
        return kind.product not in order, prefers_present and kind.product not in present, order.get(kind.product, 0)

    selections = selection, demand_pods.selection_of(template)
    kinds = [
        kind
        for kind in sorted((*known, *(kind for kind in named if kind.product not in present)), key=rank)
        if not kind.product or all(demand_pods.may_have(each, kind.product) for each in selections)
    ]
    are_told_apart = bool(own or named) and len(products | present) > 1
    if not are_told_apart and not request.constraints.models:
        kinds = [dataclasses.replace(kind, product="") for kind in kinds]
    return node_demand.usable(kinds, request)


def empty_nodes(
    views: Iterable[NodeView], selection: str, template: Mapping[str, Any], chooser: Chooser
) -> list[NodeView]:
    """Return some nodes that such a pod may use and that are as if new: they run nothing but pods of DaemonSets."""
    reason_against = chooser.node_filter({"spec": demand_pods.selecting(selection, template)})
    matching = (
        view
        for view in views
        if not view.node.allocations
        and view.node.gpus
        and (info := chooser.cache.info(view.node.name)).count == info.daemon_count
        and reason_against(view.node.name) is None
    )
    return list(itertools.islice(matching, EMPTY_NODES_TRIED))


def unhelpful(empty: Iterable[NodeView], manifest: PodJson, request: Request, chooser: Chooser) -> str | None:
    """Return why a new node would be of no use to the pod: an empty one does not take it.

    The text is empty if empty nodes take it, and None if there is none to tell by.
    """
    reason_against = chooser.node_filter(_without_amounts(manifest))
    avoided, verdict = chooser.avoided(manifest).blocked, None
    for view in empty:
        if view.node.name in avoided or not _has_gpus_for(view, request, chooser.isolation):
            continue
        reason, verdict = reason_against(view.node.name), ""
        if reason is not None:
            return f"{view.node.name} is empty and {reason}"
    return verdict


def nodes_with_room(
    demand: NodeDemand, template: Mapping[str, Any], resource: str, names: Iterable[str], chooser: Chooser
) -> dict[str, int]:
    """Return the nodes on which a demand pod could be bound now, and how much of the resource each has free."""
    needed = demand_pods.amount(resource, demand.gpus)
    reason_against = chooser.node_filter({"spec": demand_pods.selecting(demand.selection, template, demand.product)})
    free = {name: amount for name in names if (amount := _free(chooser, name, resource)) >= needed}
    return {name: amount for name, amount in free.items() if reason_against(name) is None}


def _free(chooser: Chooser, name: str, resource: str) -> int:
    spec = chooser.cache.node_spec(name)
    offered = (spec.allocatable or {}).get(resource, 0) if spec is not None else 0
    return offered - chooser.cache.info(name).amounts.get(resource, 0) if offered else 0


def _room_per_gpu(cache: SchedulerCache, name: str, gpus: int) -> tuple[int, int]:
    """Return the milli-CPUs and bytes that the pods of DaemonSets leave for each GPU; 0 while unknown."""
    spec, daemons = cache.node_spec(name), cache.info(name).daemon_amounts
    has = (spec.allocatable if spec is not None else None) or {}
    if not gpus or not has.get(pod_requests.CPU):
        return 0, 0
    cpu, memory = (max(1, has.get(key, 0) - daemons[key]) // gpus for key in (pod_requests.CPU, pod_requests.MEMORY))
    return max(1, cpu), max(1, memory)


def _has_gpus_for(view: NodeView, request: Request, default: str) -> bool:
    return isinstance(node_demand.place_on(view, request, default), Placement)


def _without_amounts(manifest: PodJson) -> PodJson:
    """Return the pod without CPU and other amounts, as nodes of another size may be in the pool."""
    spec = dict(manifest.get("spec") or {})
    for listed in ("containers", "initContainers"):
        if spec.get(listed):
            spec[listed] = [{**container, "resources": {}} for container in spec[listed]]
    spec.pop("resources", None)
    metadata = {**(manifest.get("metadata") or {}), "annotations": {}}
    return {**manifest, "metadata": metadata, "spec": spec}
