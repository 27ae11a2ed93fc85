"""Restoring: living pods whose shares are missing in the ledger → the allocations to write again. Pure.

A GPUNode can be deleted by hand; its agent makes it anew, empty, while its pods run on. What they hold is written on
them, in annotations that only gpushare may write. Until that was read back nobody may place anything on such a node: a
GPUNode whose spec has no list of allocations, not even an empty one, has never been written by us and is closed.

The API server refuses such annotations from anybody else. Where it did not, as while its policies were away, nothing is
written again for a pod that cannot have been placed (`origin`): neither a share, nor a word that one is lost.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import codec, contract, errors, ledger, pod
from gpushare import request as requests
from gpushare.allocation import Allocation, GivenShare, Labels, PodRef
from gpushare.gpunode import GpuNode
from gpushare.placement import reference
from gpushare.request import Request
from webhook.ledger import backfill_reservation
from webhook.pods import mutation, provenance

PodJson = Mapping[str, Any]

CLOSED: Final = "its ledger is empty and which pods are on it has yet to be read back: the placer does that by itself"


def is_open(document: Mapping[str, Any]) -> bool:
    """Whether the pods on it are known."""
    return "allocations" in (document.get("spec") or {})


def as_open(document: Mapping[str, Any], node: GpuNode) -> GpuNode:
    """The node, with no GPU to give while it is closed."""
    return node if is_open(document) else node.without_health(CLOSED)


def lost(nodes: Iterable[GpuNode], pods: Iterable[PodJson]) -> dict[str, list[PodJson]]:
    """By node: the living pods that were given a share there of which the ledger knows nothing."""
    known = {name for node in nodes for entry in node.allocations for name in (entry.id, entry.pod.uid)}
    names = {node.name for node in nodes}
    found: dict[str, list[PodJson]] = collections.defaultdict(list)
    for one in pods:
        annotations = pod.annotations_of(one)
        identity, name = annotations.get(contract.ALLOCATION), annotations.get(contract.NODE, "")
        if identity and name in names and identity not in known and pod.uid(one) not in known and _is_there(one, name):
            found[name].append(one)
    return dict(found)


def homeless(there: Collection[str], pods: Iterable[PodJson]) -> list[PodJson]:
    """The living pods that were given a share on a node of which there is no GPUNode; `there`: names of those."""
    found = []
    for one in pods:
        annotations = pod.annotations_of(one)
        name = annotations.get(contract.NODE, "")
        if annotations.get(contract.ALLOCATION) and name and name not in there and _is_there(one, name):
            found.append(one)
    return found


def carried(node: GpuNode, entries: Iterable[Allocation], pods: Iterable[PodJson]) -> GpuNode:
    """The node with those of its predecessor's entries whose pods `pods` does not show as placed: they may be yet.

    One without a uid has yet to be stored, and one whose pod is gated may have its gate opened at this moment.
    """
    gated = {pod.uid(one) for one in pods if contract.SCHEDULING_GATE in pod.gates(one) and not pod.is_terminal(one)}
    known = {name for entry in node.allocations for name in (entry.id, entry.pod.uid) if name}
    for entry in entries:
        if entry.id in known or entry.pod.uid in known or (entry.pod.uid and entry.pod.uid not in gated):
            continue
        try:
            node = ledger.reserve(node, entry)
        except errors.LedgerError:
            continue  # its GPU is gone: its pod is told so when it is there
    return node


def allocation(one: PodJson, node: GpuNode) -> Allocation:
    """What the pod holds, by its annotations. Raises errors.GpushareError with a sentence when they make no sense.

    What it asks for is what it holds, unless that was changed and it waits to be resized: then it says what it holds.
    """
    annotations = pod.annotations_of(one)
    held = annotations.get(contract.HELD)
    request = requests.parse(one if held is None else _without_amounts(one))
    constraints = request.constraints
    return Allocation(
        id=annotations[contract.ALLOCATION],
        pod=PodRef(*pod.namespaced_name(one), pod.uid(one)),
        shares=tuple(_shares(one, request, node)) if held is None else codec.read_shares(held),
        labels=Labels(constraints.affinity, constraints.anti_affinity, constraints.exclusion),
        latency=request.latency,
    )


def adopt(node: GpuNode, pods: Sequence[PodJson], before: Iterable[Allocation] = ()) -> tuple[GpuNode, dict[str, str]]:
    """The node with their shares; and by uid of the pod why a share could not be written again.

    before: the entries of its predecessor, where nothing that happened to it was missed. They count for more than
    annotations, which may have been changed since by somebody who wanted the pod resized.
    """
    remembered = {(entry.id, entry.pod.uid): entry for entry in before}
    failed: dict[str, str] = {}
    for one in sorted(pods, key=lambda one: str(one["metadata"].get("creationTimestamp", ""))):
        known = {
            name
            for entry in node.allocations
            if not backfill_reservation.is_hold(entry)
            for name in (entry.id, entry.pod.uid)
        }
        if pod.uid(one) in known or pod.annotations_of(one).get(contract.ALLOCATION) in known:
            continue
        try:
            entry = remembered.get((pod.annotations_of(one).get(contract.ALLOCATION, ""), pod.uid(one)))
            node = ledger.reserve(node, entry or allocation(one, node))
        except errors.GpushareError as error:
            failed[pod.uid(one)] = str(error)
    return node, failed


def _shares(one: PodJson, request: Request, node: GpuNode) -> Iterable[GivenShare]:
    cards = node.gpu_by_uuid()
    annotations = pod.annotations_of(one)
    for demand in request.demands:
        key = mutation.uuids_annotation(request, demand.containers[0])
        uuids = [uuid for uuid in annotations.get(key, "").split(",") if uuid]
        for uuid in uuids:
            if uuid not in cards:
                raise errors.LedgerError(f"{node.name} has no GPU {errors.quoted(uuid)}")
        if len(uuids) != demand.gpus:
            raise errors.LedgerError(f"{key} does not name {demand.gpus} GPUs")
        yield reference.given(demand, [cards[uuid] for uuid in uuids])


def _without_amounts(one: PodJson) -> PodJson:
    """The pod with a request that can be read, whatever became of the keys that may change."""
    kept = {
        key: value
        for key, value in pod.annotations_of(one).items()
        if not any(key == known or key.startswith(known + ".") for known in contract.RESIZABLE_KEYS)
    }
    return {**one, "metadata": {**one["metadata"], "annotations": {**kept, contract.REQUEST: "1"}}}


def _is_there(one: PodJson, node: str) -> bool:
    """Whether it may run on the node now or soon, with a share that we gave it."""
    bound = (one.get("spec") or {}).get("nodeName")
    stays = not pod.is_terminal(one) and contract.SCHEDULING_GATE not in pod.gates(one) and bound in {None, "", node}
    return stays and provenance.is_ours(one) and not provenance.never_started(one)
