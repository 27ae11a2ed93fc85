"""Backfill reservations: allocations that reserve freed capacity for an overtaken gated pod, until it fits. Pure.

A backfill reservation is an ordinary entry of the ledger, so all other code respects it, and it outlives the placer
that made it. At first it is smaller than its pod's request: it takes what is free now, and grows in the same write that
releases a share, so no other pod can get that capacity.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpushare import contract, isolation, ledger, mig_shares
from gpushare.allocation import (
    ALL_STEPS,
    ONLY_ARBITER,
    Allocation,
    GivenShare,
    Isolation,
    Labels,
    NodeAllocation,
    PodRef,
    Steps,
)
from gpushare.cluster import object_store as objects
from gpushare.gpunode import Gpu, GpuNode
from gpushare.placement import NodeView, filters, request_key
from gpushare.request import Constraints, Demand, Request
from webhook.pods.stored_pod import Pod


@dataclasses.dataclass(frozen=True, slots=True)
class ReservingPod:
    """A pod to reserve for. `node_filter` returns why a node does not fit it, or None. kinds: of isolation for it."""

    ref: PodRef
    request: Request
    node_filter: Callable[[str], str | None]
    kinds: tuple[Isolation, ...] = ONLY_ARBITER


def without_loans(views: Iterable[NodeView]) -> list[NodeView]:
    """Return the nodes that have lent memory, as if they had lent none."""
    return [
        NodeView.from_node(dataclasses.replace(view.node, resizes=()))
        for view in views
        if any(use.lent_bytes for use in view.used.values())
    ]


def choose(
    views: Iterable[NodeView],
    asked: Sequence[ReservingPod],
    *,
    new_id: Callable[[], str],
    most_missing: float = math.inf,
) -> tuple[NodeAllocation, ...] | None:
    """Choose, for each pod, the node and GPUs where the least has to be freed; None if not all would fit even then.

    The shares of the entries are still empty. GPUs with another backfill reservation are skipped, because capacity that
    is reserved twice would suffice for neither pod. most_missing: how much of the GPUs may have to be freed for a pod.
    """
    views = list(views)
    used: dict[str, ledger.GpuUse] = {}  # by pods of `asked` before this one
    chosen: list[NodeAllocation] = []
    for waiting in asked:
        best: tuple[float, str, dict[str, ledger.GpuUse], tuple[GivenShare, ...], Labels] | None = None
        for view in views:
            if not view.node.gpus or waiting.node_filter(view.node.name) is not None:
                continue
            for kind in waiting.kinds:
                request = isolation.resolved(waiting.request, kind)
                option = _on(view, request, used)
                if option is None or option[0] > most_missing:
                    continue
                if best is None or (option[0], view.node.name) < best[:2]:
                    best = (option[0], view.node.name, option[1], option[2], request.constraints.labels)
        if best is None:
            return None
        entry = Allocation(contract.BACKFILL_PREFIX + new_id(), waiting.ref, best[3], labels=best[4])
        used.update({uuid: dataclasses.replace(use, holders=(*use.holders, entry)) for uuid, use in best[2].items()})
        chosen.append(NodeAllocation(best[1], entry))
    return tuple(chosen)


def can_fit(view: NodeView, entry: Allocation, waiting: ReservingPod) -> bool:
    gpus, kind = view.node.gpu_by_uuid(), entry.labels.isolation
    if waiting.node_filter(view.node.name) is not None or kind not in waiting.kinds:
        return False
    constraints = isolation.resolved(waiting.request, kind).constraints
    for demand in waiting.request.demands:
        uuids = [uuid for share in entry.shares if share.containers == demand.containers for uuid in share.gpu_uuids]
        if len(uuids) != demand.gpus or not all(
            uuid in gpus and _would_do(gpus[uuid], ledger.NOTHING, demand, constraints) for uuid in uuids
        ):
            return False
    return True


def grown(node: GpuNode, asked: Mapping[str, Request]) -> GpuNode:
    """Return the node with each reservation as large as possible, or the very same node. asked: requests by UID."""
    gpus = node.gpu_by_uuid()
    for entry in node.allocations:
        request = asked.get(entry.pod.uid)
        if not entry.is_backfill_reservation or request is None:
            continue
        rest = ledger.use(ledger.release(node, [entry.id]))
        shares: list[GivenShare] = []  # each is on one GPU
        for share in entry.shares:
            demand = next((each for each in request.demands if each.containers == share.containers), None)
            (uuid,) = share.gpu_uuids
            if demand is None or uuid not in gpus:
                shares.append(share)
                continue
            own = ledger.taken((before for before in shares if uuid in before.gpu_uuids), share.steps)
            alone = entry.labels.isolation is Isolation.MIG or _excludes(request.constraints)
            shares.append(_largest(share, gpus[uuid], rest[uuid], own, demand, alone=alone))
        if tuple(shares) != entry.shares:
            larger = dataclasses.replace(entry, shares=tuple(shares))
            allocations = tuple(larger if allocation.id == entry.id else allocation for allocation in node.allocations)
            node = dataclasses.replace(node, allocations=allocations)
    return node


def waiting_requests(nodes: Iterable[GpuNode], pods: Mapping[objects.Key, Pod]) -> dict[str, Request]:
    requests: dict[str, Request] = {}
    for holder in (entry.pod for node in nodes for entry in node.allocations if entry.is_backfill_reservation):
        pod = pods.get(objects.Key(holder.namespace, holder.name))
        if pod is not None and pod.ref.uid == holder.uid and isinstance(pod.request, Request):
            requests[holder.uid] = pod.request
    return requests


def _largest(
    share: GivenShare, gpu: Gpu, others: ledger.GpuUse, own: tuple[int, int], demand: Demand, *, alone: bool
) -> GivenShare:
    """Return the share with as much as is free. alone: reserve all of the GPU, for no other pod may join.

    Affinity could exclude another pod, and amounts reserve no place for a MIG device.
    """
    percent, memory_bytes = demand.share.request_percent, demand.share.memory.on(gpu.memory_bytes)
    if alone:
        percent, memory_bytes = 100, gpu.memory_bytes
    free_percent = 100 - others.request_percent - own[0]
    free_bytes = gpu.memory_bytes - others.memory_bytes - own[1]
    return dataclasses.replace(
        share, request_percent=max(0, min(percent, free_percent)), memory_bytes=max(0, min(memory_bytes, free_bytes))
    )


def _on(
    view: NodeView, request: Request, used: Mapping[str, ledger.GpuUse]
) -> tuple[float, dict[str, ledger.GpuUse], tuple[GivenShare, ...]] | None:
    """Return what is missing on this node, what would be used, and the empty shares; None if the pod can never fit."""
    own: dict[str, list[GivenShare]] = collections.defaultdict(list)
    missing, shares = 0.0, []

    def asked(uuid: str, steps: Steps = ALL_STEPS, more: Sequence[GivenShare] = ()) -> ledger.GpuUse:
        others, (percent, memory_bytes) = used.get(uuid, ledger.NOTHING), ledger.taken((*own[uuid], *more), steps)
        return ledger.GpuUse(others.request_percent + percent, others.memory_bytes + memory_bytes, others.holders)

    for demand in request_key.in_order(request):
        options = []
        for gpu in view.node.gpus:
            now, before = view.used[gpu.uuid], asked(gpu.uuid, demand.steps)
            if any(entry.is_backfill_reservation for entry in now.holders) or not _would_do(
                gpu, before, demand, request.constraints
            ):
                continue
            lacked = _missing(gpu, now, asked(gpu.uuid), request.constraints) if own[gpu.uuid] else 0.0
            lacks = _missing(gpu, now, asked(gpu.uuid, more=[demand.on([gpu])]), request.constraints)
            if request.constraints.isolation is Isolation.MIG:
                made = mig_shares.instances(now.holders, gpu.uuid)
                lacks += bool(mig_shares.lacks_place(gpu, demand.share, made))
            options.append((lacks - lacked, gpu.index, gpu))
        if len(options) < demand.gpus:
            return None
        for lacks, _, gpu in sorted(options, key=lambda option: option[:2])[: demand.gpus]:
            missing += lacks
            own[gpu.uuid].append(demand.on([gpu]))
            shares.append(GivenShare(demand.containers, (gpu.uuid,), 0, 100, 0, steps=demand.steps))
    return missing, {uuid: asked(uuid) for uuid, given in own.items() if given}, tuple(shares)


def _would_do(gpu: Gpu, used: ledger.GpuUse, demand: Demand, constraints: Constraints) -> bool:
    return filters.reject(filters.FilterInput(gpu, used, demand.share, constraints)) is None


def _missing(gpu: Gpu, now: ledger.GpuUse, asked: ledger.GpuUse, constraints: Constraints) -> float:
    """Return how much of the GPU has to be freed, 0 to 2, plus 2 if all other pods have to leave it."""
    percent = now.request_percent + asked.request_percent - 100
    memory_bytes = now.memory_bytes + asked.memory_bytes - gpu.memory_bytes
    alone = _excludes(constraints) and bool(now.holders)
    alone = alone or any(holder.labels.isolation is not constraints.isolation for holder in now.holders)
    return max(0, percent) / 100 + max(0, memory_bytes) / (gpu.memory_bytes or 1) + 2 * alone


def _excludes(constraints: Constraints) -> bool:
    """Whether the labels of other pods could keep the pod from a GPU."""
    return bool(constraints.affinity or constraints.anti_affinity or constraints.exclusion)
