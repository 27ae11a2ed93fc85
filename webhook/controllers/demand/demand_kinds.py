"""Demand kinds: which kinds of GPU a new node could have for a pod, and on which nodes a demand pod fits already.

A new node is taken to be like the nodes of the same pool: those that the pod's node selector, affinity and tolerations
allow. Without such a node, the kinds that the administrator has named count. Rules that a demand pod cannot carry,
such as inter-pod affinity or the zone of a volume, could make new nodes useless one after the other. So a pod that an
empty node of its pool does not take for such a reason asks for none.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare.gpunode import FACTS, Mode
from gpushare.nodefilters import NodeSpec, pod_requests
from gpushare.placement import NodeView, Placement
from gpushare.pod import PodJson
from gpushare.request import Request
from gpushare.whatif import node_demand
from gpushare.whatif.node_demand import GpuKind, NodeDemand
from webhook.controllers.demand import demand_pods
from webhook.store.chooser import Chooser

EMPTY_NODES_TRIED: Final = 4


@dataclasses.dataclass(frozen=True, slots=True)
class PoolKind:
    """A kind of GPU, and the nodes that have it."""

    kind: GpuKind
    nodes: tuple[str, ...]


def of_cluster(views: Iterable[NodeView], chooser: Chooser) -> tuple[PoolKind, ...]:
    """Return the kinds that the cluster has, the most common first."""
    found: dict[tuple[object, ...], GpuKind] = {}
    nodes: dict[GpuKind, list[str]] = collections.defaultdict(list)
    for view in views:
        name = view.node.name
        product = chooser.labels(name).get(demand_pods.PRODUCT_LABEL, "")
        cpu_milli, memory_bytes = _room_per_gpu(chooser.cache.node_spec(name), len(view.node.gpus))
        for gpu in view.node.gpus:
            if gpu.mode is not Mode.FRACTIONAL:
                continue
            key = (FACTS(gpu), product, cpu_milli, memory_bytes)
            if key not in found:
                found[key] = GpuKind.of(gpu, product, cpu_milli=cpu_milli, memory_bytes=memory_bytes)
            named = nodes[found[key]]
            if not named or named[-1] != name:
                named.append(name)
    by_size = sorted(nodes.items(), key=lambda item: (-len(item[1]), repr(item[0])))
    return tuple(PoolKind(kind, tuple(names)) for kind, names in by_size)


def of_pod(
    pools: Sequence[PoolKind], named: Sequence[GpuKind], request: Request, selection: str, chooser: Chooser
) -> tuple[GpuKind, ...]:
    """Return the kinds to try for a pod. Kinds that differ are told apart by their product label."""
    reason_against = chooser.node_filter({"spec": demand_pods.selecting(selection, {})})
    own = [pool.kind for pool in pools if any(reason_against(name) is None for name in pool.nodes)]
    known = {kind.product for kind in own}
    kinds = [*own, *(kind for kind in named if kind.product not in known)]
    products = {pool.kind.product for pool in pools} | {kind.product for kind in named}
    if len(products) == 1 and not request.constraints.models:
        kinds = [dataclasses.replace(kind, product="") for kind in kinds]
    return node_demand.usable(kinds, request)


def empty_nodes(views: Iterable[NodeView], selection: str, chooser: Chooser) -> list[NodeView]:
    """Return some nodes without shares that such a pod may use."""
    empty = (view for view in views if not view.node.allocations and view.node.gpus)
    reason_against = chooser.node_filter({"spec": demand_pods.selecting(selection, {})})
    matching = (view for view in empty if reason_against(view.node.name) is None)
    return list(itertools.islice(matching, EMPTY_NODES_TRIED))


def unhelpful(empty: Iterable[NodeView], manifest: PodJson, request: Request, chooser: Chooser) -> str | None:
    """Return why a new node would be of no use to the pod: an empty one does not take it. None if one may help."""
    reason_against = chooser.node_filter(_without_amounts(manifest))
    for view in empty:
        reason = reason_against(view.node.name)
        if reason is not None and _has_gpus_for(view, request, chooser.isolation):
            return f"{view.node.name} is empty and {reason}"
    return None


def nodes_with_room(
    demand: NodeDemand, template: Mapping[str, Any], resource: str, names: Iterable[str], chooser: Chooser
) -> dict[str, int]:
    """Return the nodes on which a demand pod could be bound now, and how much of the resource each has free."""
    needed = demand_pods.amount(resource, demand.gpus)
    reason_against = chooser.node_filter(
        {"spec": demand_pods.selecting(demand.selection, template.get("spec") or {}, demand.product)}
    )
    free = {name: amount for name in names if (amount := _free(chooser, name, resource)) >= needed}
    return {name: amount for name, amount in free.items() if reason_against(name) is None}


def _free(chooser: Chooser, name: str, resource: str) -> int:
    spec = chooser.cache.node_spec(name)
    offered = (spec.allocatable or {}).get(resource, 0) if spec is not None else 0
    return offered - chooser.cache.info(name).amounts.get(resource, 0) if offered else 0


def _room_per_gpu(spec: NodeSpec | None, gpus: int) -> tuple[int, int]:
    has = (spec.allocatable if spec is not None else None) or {}
    if not gpus or not has.get(pod_requests.CPU):
        return 0, 0
    return has[pod_requests.CPU] // gpus, has.get(pod_requests.MEMORY, 0) // gpus


def _has_gpus_for(view: NodeView, request: Request, default: str) -> bool:
    return isinstance(node_demand.place_on(view, request, default), Placement)


def _without_amounts(manifest: PodJson) -> PodJson:
    """Return the pod without CPU and other amounts, of which a new node would have more free."""
    spec = dict(manifest.get("spec") or {})
    for listed in ("containers", "initContainers"):
        if spec.get(listed):
            spec[listed] = [{**container, "resources": {}} for container in spec[listed]]
    spec.pop("resources", None)
    metadata = {**(manifest.get("metadata") or {}), "annotations": {}}
    return {**manifest, "metadata": metadata, "spec": spec}
