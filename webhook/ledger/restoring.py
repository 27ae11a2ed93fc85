"""Restoring: living pods whose shares are missing in the ledger → the allocations to write again. Pure.

A GPUNode can be deleted by hand; its agent recreates it, empty, while its pods run on. What they hold is written on
them, in annotations that only gpushare may write. Until that was read back nobody may place anything on such a node: a
GPUNode whose spec has no list of allocations, not even an empty one, has never been written by us and is closed.

The API server refuses such annotations from anybody else. Where it did not, as while its policies were away, nothing is
written again for a pod that cannot have been placed (`Pod.may_run`): neither a share, nor a word that one is lost.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import codec, contract, errors, ledger
from gpushare import request as requests
from gpushare.allocation import Allocation, GivenShare, Labels
from gpushare.gpunode import GpuNode
from gpushare.placement import reference
from gpushare.request import Request
from webhook.ledger import backfill_reservation
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod

CLOSED: Final = "its ledger is empty and which pods are on it has yet to be read back: the placer does that by itself"


def is_open(document: Mapping[str, Any]) -> bool:
    """Whether the pods on it are known."""
    return "allocations" in (document.get("spec") or {})


def as_open(document: Mapping[str, Any], node: GpuNode) -> GpuNode:
    """The node, with no GPU to give while it is closed."""
    return node if is_open(document) else node.without_health(CLOSED)


def lost(nodes: Iterable[GpuNode], pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """By node: the living pods that were given a share there of which the ledger knows nothing."""
    known = {name for node in nodes for entry in node.allocations for name in (entry.id, entry.pod.uid)}
    names = {node.name for node in nodes}
    lost_on: dict[str, list[Pod]] = collections.defaultdict(list)
    for pod in pods:
        if pod.placed_on in names and known.isdisjoint((pod.allocation_id, pod.ref.uid)) and _is_there(pod):
            lost_on[pod.placed_on].append(pod)
    return dict(lost_on)


def homeless(there: Collection[str], pods: Iterable[Pod]) -> list[Pod]:
    """The living pods that were given a share on a node of which there is no GPUNode; `there`: names of those."""
    return [pod for pod in pods if pod.placed_on not in there and _is_there(pod)]


def carried(node: GpuNode, entries: Iterable[Allocation], pods: Iterable[Pod]) -> GpuNode:
    """The node with those of its predecessor's entries whose pods `pods` does not show as placed: they may be yet.

    One without a uid has yet to be stored, and one whose pod is gated may have its gate opened at this moment.
    """
    gated = {pod.ref.uid for pod in pods if pod.is_gated and not pod.has_ended}
    known = {name for entry in node.allocations for name in (entry.id, entry.pod.uid) if name}
    for entry in entries:
        if entry.id in known or entry.pod.uid in known or (entry.pod.uid and entry.pod.uid not in gated):
            continue
        try:
            node = ledger.reserve(node, entry)
        except errors.LedgerError:
            continue  # its GPU is gone: its pod is told so when it is there
    return node


def allocation(pod: Pod, node: GpuNode) -> Allocation:
    """What the pod holds, by its annotations. Raises errors.GpushareError with a sentence when they are invalid.

    What it asks for is what it holds, unless that was changed and it waits to be resized: then it says what it holds.
    """
    held = pod.annotations.get(contract.HELD)
    request = pod.request if held is None else _without_amounts(pod)
    if isinstance(request, str):
        raise errors.LedgerError(request)
    constraints = request.constraints
    return Allocation(
        id=pod.allocation_id,
        pod=pod.ref,
        shares=tuple(_shares(pod, request, node)) if held is None else codec.read_shares(held),
        labels=Labels(constraints.affinity, constraints.anti_affinity, constraints.exclusion),
        latency=request.latency,
    )


def adopt(node: GpuNode, pods: Sequence[Pod], before: Iterable[Allocation] = ()) -> tuple[GpuNode, dict[str, str]]:
    """The node with their shares; and by uid of the pod why a share could not be written again.

    before: the entries of its predecessor, where nothing that happened to it was missed. They count for more than
    annotations, which may have been changed since by somebody who wanted the pod resized.
    """
    remembered = {(entry.id, entry.pod.uid): entry for entry in before}
    failed: dict[str, str] = {}
    for pod in sorted(pods, key=lambda pod: pod.created):
        identity, uid = pod.allocation_id, pod.ref.uid
        known = {
            name
            for entry in node.allocations
            if not backfill_reservation.is_hold(entry)
            for name in (entry.id, entry.pod.uid)
        }
        if not known.isdisjoint((identity, uid)):
            continue
        try:
            node = ledger.reserve(node, remembered.get((identity, uid)) or allocation(pod, node))
        except errors.GpushareError as error:
            failed[uid] = str(error)
    return node, failed


def _shares(pod: Pod, request: Request, node: GpuNode) -> Iterable[GivenShare]:
    cards = node.gpu_by_uuid()
    for demand in request.demands:
        key = mutation.uuids_annotation(request, demand.containers[0])
        uuids = [uuid for uuid in pod.annotations.get(key, "").split(",") if uuid]
        for uuid in uuids:
            if uuid not in cards:
                raise errors.LedgerError(f"{node.name} has no GPU {errors.quoted(uuid)}")
        if len(uuids) != demand.gpus:
            raise errors.LedgerError(f"{key} does not name {demand.gpus} GPUs")
        yield reference.given(demand, [cards[uuid] for uuid in uuids])


def _without_amounts(pod: Pod) -> Request:
    """A request that can be read, whatever became of the keys that may change."""
    kept = {
        key: value
        for key, value in pod.annotations.items()
        if not any(key == known or key.startswith(known + ".") for known in contract.RESIZABLE_KEYS)
    }
    return requests.read({**kept, contract.REQUEST: "1"}, pod.containers, next(iter(pod.containers), ""))


def _is_there(pod: Pod) -> bool:
    """Whether it may run now or soon where it says that it was placed, with a share that we gave it."""
    stays = not pod.has_ended and not pod.is_gated and pod.node in {"", pod.placed_on}
    return bool(pod.allocation_id and pod.placed_on) and stays and pod.may_run
