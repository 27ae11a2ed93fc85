"""Reinvocation: whether a pod that comes with an allocation id already holds that reservation.

The API server sends a pod again when a webhook after us has changed it. Such a pod must not be given a second share. A
user who copies the id of somebody's allocation must not get that allocation: it has to be unconfirmed (no pod with it
has been stored yet), of this namespace and pod name, and exactly what this pod asks for. If the pod now asks for
something else, or its node no longer takes it, the admission releases the reservation and places the pod again.

It may come to another replica than the one that placed it, before the news of the reservation does: so what our copy
does not have is asked of the API server. Without its reservation the pod would be placed again with our own pin as a
constraint, and could be gated for a node that is full while others are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpushare import contract, ledger, pod
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpu import Gpu
from gpushare.gpunode import GpuNode
from gpushare.placement import filters
from gpushare.request import Constraints, Demand, Request
from webhook.store import ledger_store


async def find(
    manifest: Mapping[str, Any], holder: PodRef, ledger_now: ledger_store.LiveLedger
) -> tuple[GpuNode, Allocation] | None:
    """The reservation that this pod was given a moment ago, with its node; None if it has none.

    Raises UnreachableError when our copy does not have it and the API server does not answer.
    """
    annotations = pod.annotations_of(manifest)
    wanted, name = annotations.get(contract.ALLOCATION), annotations.get(contract.NODE)
    if not wanted or not name:
        return None
    for is_fresh in (False, True):
        if is_fresh:
            await ledger_now.refresh(name)
        view = ledger_now.view(name)
        if view is None:
            continue
        for entry in view.node.allocations:
            if entry.id == wanted and is_own(entry, holder):
                return view.node, entry
    return None


def is_own(entry: Allocation, holder: PodRef) -> bool:
    """Whether this reservation was made a moment ago for this very pod, whose uid is unknown before it is stored."""
    return entry.reserved_until is not None and entry.pod == holder


def is_as_asked(entry: Allocation, request: Request, node: GpuNode) -> bool:
    """Whether the reservation is exactly what the pod asks for now, on GPUs that will do."""
    constraints = request.constraints
    return (
        entry.labels == constraints.labels
        and entry.latency == request.latency
        and {share.containers for share in entry.shares} == {demand.containers for demand in request.demands}
        and all(_fulfils(entry.shares, demand, constraints, node.gpu_by_uuid()) for demand in request.demands)
    )


def _fulfils(shares: Iterable[GivenShare], demand: Demand, constraints: Constraints, gpus: Mapping[str, Gpu]) -> bool:
    mine = [share for share in shares if share.containers == demand.containers]
    own = [gpus[uuid] for share in mine for uuid in share.gpu_uuids if uuid in gpus]
    return (
        len({gpu.uuid for gpu in own}) == demand.gpus
        and mine == [demand.on(own)]
        and all(
            filters.reject(filters.FilterInput(gpu, ledger.NOTHING, demand.share, constraints)) is None for gpu in own
        )
    )
