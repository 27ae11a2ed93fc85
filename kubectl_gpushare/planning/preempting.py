"""Finds whose place a waiting pod would take by preemption, as the placer does, on the cluster in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from gpushare import contract, ledger, pod, preemption
from gpushare.allocation import Allocation
from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.placement import NodeView, Placement
from gpushare.preemption import Holder, Nomination, Victims
from gpushare.refusal import Refusal
from gpushare.request import Request
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from kubectl_gpushare.planning import reasons
from kubectl_gpushare.planning.reasons import Reasons
from kubectl_gpushare.source.snapshot import Snapshot


def with_victims(found: Reasons, manifest: pod.PodJson, snapshot: Snapshot, budgets: Budgets) -> Reasons:
    """Add whose place the pod would take, or takes, if it fits nowhere."""
    if found.refusal is None or snapshot.pods is None or found.refusal.lasts:
        return found
    if sum(len(node.gpus) for node in snapshot.nodes) > reasons.MAX_PLANNED_GPUS:
        return found
    return dataclasses.replace(found, preemption=_sentence(found, manifest, snapshot, budgets))


def _sentence(found: Reasons, manifest: pod.PodJson, snapshot: Snapshot, budgets: Budgets) -> str:
    nominated = {entry.pod: node.name for node in snapshot.nodes for entry in node.allocations if entry.is_nomination}
    if name := next((name for ref, name in nominated.items() if ref.uid == pod.uid(manifest)), ""):
        return f"takes the place of other pods on {name}, which end or are being evicted"
    if found.held_back or (manifest.get("spec") or {}).get("preemptionPolicy") == "Never":
        return ""
    if _gives_way(found, manifest, snapshot):
        return ""
    world = reasons.around(manifest, snapshot)
    world.bounds = found.bounds
    for taken in nominated.values():
        world.views.pop(taken, None)
    chosen = _choose(world, found.asked, budgets)
    if chosen is None:
        return ""
    # The placer compares at most so many nodes, from the one after its last search.
    is_certain = len(world.views) <= preemption.MAX_OPTIONS
    place = f"{preemption.names(chosen.victims)} on {chosen.placement.node}"
    place = f"the place of {place}" if is_certain else f"a place such as that of {place}"
    is_on = snapshot.profile is not None and snapshot.profile.preemption
    if not is_on:
        return f"would take {place}, if preemption were on"
    if any(ref.namespace == found.asked.namespace for ref in nominated):
        return f"would take {place}, but at most one pod of a namespace preempts at a time"
    if len(nominated) >= preemption.MAX_NOMINATED:
        return f"would take {place}, but at most {preemption.MAX_NOMINATED} pods preempt at a time"
    return f"{'will' if is_certain else 'would'} take {place}: preemption is on"


def _gives_way(found: Reasons, manifest: pod.PodJson, snapshot: Snapshot) -> bool:
    """Whether only GPUs that are held for other pods are in its way: the placer evicts none for it then."""
    free = tuple(
        ledger.release(node, [entry.id for entry in node.allocations if entry.is_backfill_reservation])
        for node in snapshot.nodes
    )
    world = reasons.around(manifest, dataclasses.replace(snapshot, nodes=free))
    world.bounds = found.bounds
    return isinstance(world.place(found.asked.manifest, found.asked.request), Placement)


def _choose(world: World, asked: RequestingPod, budgets: Budgets) -> Nomination | None:
    spared = set[str]()
    uid, priority = pod.uid(asked.manifest), pod.priority(asked.manifest)

    def holder(entry: Allocation) -> Holder | None:
        manifest = world.manifest(entry)
        if manifest is None:
            return Holder(0, "", ends=False, protection="was not read")  # it may run: a file can lack pods
        metadata, its_priority = manifest.get("metadata") or {}, pod.priority(manifest)
        ends = bool(metadata.get("deletionTimestamp")) or pod.is_terminal(manifest)
        is_gated, is_spared = contract.SCHEDULING_GATE in pod.gates(manifest), pod.uid(manifest) in spared
        protection = "gated" if is_gated else "protected" if is_spared else ""
        protection = protection or evicting.protected(manifest, max_priority=its_priority)
        return Holder(its_priority, str(metadata.get("creationTimestamp") or ""), ends, protection)

    async def place(left: NodeView, request: Request, gone: Sequence[Allocation]) -> Placement | Refusal:
        return world.place_on(left, asked.manifest, request, gone)

    async def search(name: str) -> Nomination | None:
        return await preemption.find(world.views[name], asked.request, holder, place, uid=uid, priority=priority)

    async def protected(victims: Victims) -> list[str]:
        there = ((victim, world.manifest(victim.allocation)) for victim in victims)
        forbidden = preemption.forbidden(there, budgets, priority=priority)
        spared.update(forbidden)
        return forbidden

    try:
        preemption.choose(list(world.views), search, protected).send(None)
    except StopIteration as end:  # at once, because it waits for nothing here
        return cast("Nomination | None", end.value)
    raise AssertionError("the search waits for something")
