"""Finds why a pod waits, why it is on its GPUs, and its other places, by placing it as if it were created now."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract, errors, isolation, ledger, pod
from gpushare.defragmentation.evicting import Budgets
from gpushare.gpu_capacity import Fragmentation
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement, exclusive_gpus, explanation, filters
from gpushare.refusal import Refusal
from gpushare.resource_quota import Allowance
from gpushare.share_range import UNBOUNDED, ShareRange
from gpushare.whatif import world as worlds
from gpushare.whatif.requesting_pod import RequestingPod, without_placement
from gpushare.whatif.world import World
from kubectl_gpushare.planning import remedies
from kubectl_gpushare.planning.remedies import Remedy
from kubectl_gpushare.source.snapshot import Snapshot

_CHOICES = 5
MAX_PLANNED_GPUS = 1000
KUEUE_GATE: Final = "kueue.x-k8s.io/admission"
_KUEUE_CONDITION: Final = "QuotaReserved"  # of a Workload; its message says what the pod waits for
_MAX_QUEUE: Final = 600


@dataclasses.dataclass(frozen=True, slots=True)
class Reasons:
    """The result. `refusal` names every candidate; None if the pod fits or is placed."""

    asked: RequestingPod
    policy: str
    refusal: Refusal | None
    changes: tuple[Remedy, ...]
    choices: tuple[Choice, ...]
    fits: int  # GPUs that would fit
    ruled_out: Mapping[str, int]  # rule -> GPUs
    held_back: tuple[str, ...]  # why it waits regardless of free capacity
    free_before: float  # stranded GPUs of the cluster without the pod
    isolations: tuple[isolation.TriedKind, ...]  # that placement tries, in this order, and why
    if_recreated: str = ""  # why the webhook would deny the pod if it were created now
    preemption: str = ""  # whose place the pod would take, or takes
    bounds: Mapping[str, exclusive_gpus.ExclusiveBound | None] = dataclasses.field(default_factory=dict)


def explain(
    manifest: pod.PodJson, snapshot: Snapshot, quotas: Sequence[Allowance] = (), allowed: ShareRange = UNBOUNDED
) -> Reasons:
    """Return the reasons of one pod. Raises `RequestError`.

    quotas: its namespace's, which bound exclusive GPUs. allowed: its namespace's range.
    """
    asked = RequestingPod.from_manifest(without_placement(manifest))
    world = around(manifest, snapshot)
    world.bounds = {asked.namespace: exclusive_gpus.bound_of(asked.namespace, quotas)}
    world.ranges = {asked.namespace: allowed}
    answer = world.place(asked.manifest, asked.request)
    tried_kinds = isolation.choices(asked.request, world.profile.isolation)
    kind = answer.isolation if isinstance(answer, Placement) else tried_kinds[0].isolation
    fits, ruled_out = counts(world, RequestingPod(asked.manifest, isolation.resolved(asked.request, kind)))
    refusal = None
    tried: Sequence[Remedy] = ()
    choices: Sequence[Choice] = ()
    if isinstance(answer, Placement):
        choices = rank(world, asked, most=_CHOICES)
    else:
        whole = world.refuse(asked.manifest, asked.request)
        refusal = whole if isinstance(whole, Refusal) else answer
        tried = remedies.all_of(world, asked, refusal.rejected)
    return Reasons(
        asked=asked,
        policy=asked.request.policy or world.policy,
        refusal=refusal,
        changes=tuple(tried),
        choices=tuple(choices),
        fits=fits,
        ruled_out=ruled_out,
        held_back=tuple(_held_back(asked)),
        free_before=world.fragmentation().stranded_gpus,
        isolations=tried_kinds,
        if_recreated=allowed.excess(asked.request) or "",
        bounds=world.bounds,
    )


def with_moves(found: Reasons, manifest: pod.PodJson, snapshot: Snapshot, budgets: Budgets) -> Reasons:
    """Add the moves of one `defrag` step if no single move helps; with thousands of GPUs more would take seconds."""
    if found.refusal is None or snapshot.pods is None or any(change.kind == "move" for change in found.changes):
        return found
    if sum(len(node.gpus) for node in snapshot.nodes) > MAX_PLANNED_GPUS:
        return found
    name = pod.namespaced_name(manifest)[1]
    moves = remedies.defragmented(around(manifest, snapshot), name, found.asked, budgets)
    return dataclasses.replace(found, changes=(*found.changes, moves)) if moves else found


def around(manifest: pod.PodJson, snapshot: Snapshot) -> World:
    nodes: Sequence[GpuNode] = worlds.nodes_without(snapshot.nodes, manifest)
    identity = pod.namespaced_name(manifest)
    others = [other for other in snapshot.pods or () if pod.namespaced_name(other) != identity]
    storage = snapshot.storage and worlds.unaccounted(snapshot.storage, snapshot.pods or ())
    return World(nodes, snapshot.node_objects, others, storage, claims_are_all=True, profile=snapshot.profile)


def with_queue(found: Reasons, manifest: pod.PodJson, workloads: Iterable[Mapping[str, Any]]) -> Reasons:
    """Add what Kueue says of the pod's Workload. workloads: those of its namespace."""
    uid = pod.uid(manifest)
    said = (
        str(condition.get("message", ""))
        for workload in workloads
        if any(owner.get("uid") == uid for owner in workload["metadata"].get("ownerReferences") or ())
        for condition in (workload.get("status") or {}).get("conditions") or ()
        if condition.get("type") == _KUEUE_CONDITION and condition.get("status") == "False"
    )
    sentences = [f"Kueue: {errors.shortened(sentence, longest=_MAX_QUEUE)}" for sentence in said if sentence]
    return dataclasses.replace(found, held_back=(*found.held_back, *sentences))


def _held_back(asked: RequestingPod) -> list[str]:
    sentences = []
    foreign = [gate for gate in pod.gates(asked.manifest) if gate != contract.SCHEDULING_GATE]
    if foreign:
        names = ", ".join(errors.quoted(name) for name in foreign[:3])
        sentences.append(f"waits for the scheduling gate {names}, which belongs to another controller")
    if asked.request.group_size.is_gang:
        group = errors.quoted(asked.request.group)
        sentences.append(f"waits for its group {group}: {asked.request.group_size.rule}")
    return sentences


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A possible place for a pod, and the cluster's fragmentation with the pod there."""

    placement: Placement
    gpus: str
    after: Fragmentation
    left: tuple[int, int]  # compute in per cent and memory in bytes, on the first of its GPUs


def rank(world: World, asked: RequestingPod, *, most: int) -> list[Choice]:
    """Return the best places, at most `most`: by GPU if the pod wants one GPU, else by node."""
    ranked: list[Choice] = []
    alone = len(asked.request.demands) == 1 and asked.request.demands[0].gpus == 1
    taken_nodes: set[str] = set()
    node_filter = world.node_filter(asked.manifest)
    request = asked.request
    while len(ranked) < most:
        answer = world.place(
            asked.manifest,
            request,
            node_filter=lambda name: "was told before" if name in taken_nodes else node_filter(name),
        )
        if not isinstance(answer, Placement):
            break
        ranked.append(_choice(world, asked, answer))
        if alone:
            known = request.constraints
            uuids = (*known.not_uuids, *answer.shares[0].gpu_uuids)
            request = dataclasses.replace(request, constraints=dataclasses.replace(known, not_uuids=uuids))
        else:
            taken_nodes.add(answer.node)
    return ranked


def counts(world: World, asked: RequestingPod) -> tuple[int, dict[str, int]]:
    """Return `(GPUs that fit, GPUs or nodes that each rule rejects)`, for the first demand of the request."""
    node_filter = world.node_filter(asked.manifest)
    demand = asked.request.demands[0]
    fits = 0
    ruled_out: collections.Counter[str] = collections.Counter()
    for view in world.views.values():
        if view.node.gpus and node_filter(view.node.name) is not None:
            ruled_out[explanation.NODE_RULE] += 1
            continue
        for gpu, used in view.gpus():
            verdict = filters.reject(filters.FilterInput(gpu, used, demand.share, asked.request.constraints))
            fits += verdict is None
            if verdict is not None:
                ruled_out[verdict[0]] += 1
    return fits, dict(ruled_out)


def _choice(world: World, asked: RequestingPod, answer: Placement) -> Choice:
    undo = world.assign(asked.manifest, asked.request, answer)
    try:
        view = world.views[answer.node]
        uuid = answer.shares[0].gpu_uuids[0]
        used = view.used.get(uuid, ledger.NOTHING)
        gpu = view.node.gpu_by_uuid()[uuid]
        left = (100 - used.request_percent, gpu.memory_bytes - used.memory_bytes)
        return Choice(answer, worlds.gpus(answer, world.views), world.fragmentation(), left)
    finally:
        undo()
