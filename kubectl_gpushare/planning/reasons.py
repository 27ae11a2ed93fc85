"""Finds why a pod waits, or why it is on its GPUs, by placing it as if it were created now."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gpushare import contract, errors, pod
from gpushare.defragmentation.evicting import Budgets
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement, exclusive_gpus
from gpushare.refusal import Refusal
from gpushare.resource_quota import Allowance
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod, World
from kubectl_gpushare.planning import ranking, remedies
from kubectl_gpushare.planning.ranking import Choice
from kubectl_gpushare.planning.remedy import Remedy
from kubectl_gpushare.source.snapshot import Snapshot

_CHOICES = 5
MAX_PLANNED_GPUS = 1000


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


def explain(manifest: pod.PodJson, snapshot: Snapshot, quotas: Sequence[Allowance] = ()) -> Reasons:
    """Return the reasons of one pod, with remedies. Raises `RequestError`.

    quotas: its namespace's, which bound exclusive GPUs.
    """
    asked = RequestingPod.from_manifest(worlds.without_placement(manifest))
    world = around(manifest, snapshot)
    world.bounds = {asked.namespace: exclusive_gpus.bound_of(asked.namespace, quotas)}
    answer = world.place(asked.manifest, asked.request)
    fits, ruled_out = ranking.counts(world, asked)
    refusal = None
    tried: Sequence[Remedy] = ()
    choices: Sequence[Choice] = ()
    if isinstance(answer, Placement):
        choices = ranking.choices(world, asked, most=_CHOICES)
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
    )


def with_moves(found: Reasons, manifest: pod.PodJson, snapshot: Snapshot, budgets: Budgets) -> Reasons:
    """Add the moves that `defrag` would make, for a pod that no single move helps.

    With thousands of GPUs this takes seconds, so only `defrag` plans more than one step.
    """
    if found.refusal is None or snapshot.pods is None or any(change.kind == "move" for change in found.changes):
        return found
    if sum(len(node.gpus) for node in snapshot.nodes) > MAX_PLANNED_GPUS:
        return found
    name = pod.namespaced_name(manifest)[1]
    moves = remedies.defragmented(around(manifest, snapshot), name, found.asked, budgets)
    return dataclasses.replace(found, changes=(*found.changes, moves)) if moves else found


def around(manifest: pod.PodJson, snapshot: Snapshot) -> World:
    """Return the cluster without the pod, as if it were created now."""
    nodes: Sequence[GpuNode] = worlds.nodes_without(snapshot.nodes, manifest)
    identity = pod.namespaced_name(manifest)
    others = [other for other in snapshot.pods or () if pod.namespaced_name(other) != identity]
    storage = snapshot.storage and worlds.unaccounted(snapshot.storage, snapshot.pods or ())
    return World(nodes, snapshot.node_objects, others, storage, claims_are_all=True, profile=snapshot.profile)


def _held_back(asked: RequestingPod) -> list[str]:
    sentences = []
    foreign = [gate for gate in pod.gates(asked.manifest) if gate != contract.SCHEDULING_GATE]
    if foreign:
        names = ", ".join(errors.quoted(name) for name in foreign[:3])
        sentences.append(f"waits for the scheduling gate {names}, which belongs to another controller")
    if asked.request.group_size > 1:
        group = errors.quoted(asked.request.group)
        sentences.append(f"waits for its group {group}: its {asked.request.group_size} pods are placed together")
    return sentences
