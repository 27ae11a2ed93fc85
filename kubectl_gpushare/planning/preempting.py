"""Finds whose place a waiting pod would take by preemption, as the placer does, on the cluster in memory."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from gpushare import ledger, pod, preemption
from gpushare.allocation import Allocation, Isolation
from gpushare.defragmentation import evicting
from gpushare.defragmentation.evicting import Budgets
from gpushare.placement import NodeView, Placement
from gpushare.preemption import Victim, Victims
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
    node, victims = chosen
    place = f"the place of {preemption.names(victims)} on {node}"
    is_on = snapshot.profile is not None and snapshot.profile.preemption
    if not is_on:
        return f"would take {place}, if preemption were on"
    if any(ref.namespace == found.asked.namespace for ref in nominated):
        return f"would take {place}, but at most one pod of a namespace preempts at a time"
    if len(nominated) >= preemption.MAX_NOMINATED:
        return f"would take {place}, but at most {preemption.MAX_NOMINATED} pods preempt at a time"
    return f"will take {place}: preemption is on"


def _gives_way(found: Reasons, manifest: pod.PodJson, snapshot: Snapshot) -> bool:
    """Whether only GPUs that are held for other pods are in its way: the placer evicts none for it then."""
    free = tuple(
        ledger.release(node, [entry.id for entry in node.allocations if entry.is_backfill_reservation])
        for node in snapshot.nodes
    )
    world = reasons.around(manifest, dataclasses.replace(snapshot, nodes=free))
    world.bounds = found.bounds
    return isinstance(world.place(found.asked.manifest, found.asked.request), Placement)


def _choose(world: World, asked: RequestingPod, budgets: Budgets) -> tuple[str, Victims] | None:
    spared = set[str]()
    options = {
        name: victims
        for name in [*world.views]
        if (victims := _fewest(world, name, asked, budgets, spared)) is not None
    }
    if not all(options.values()):
        return None  # it fits as soon as pods have ended that are being deleted
    for _ in range(preemption.MAX_CHOICES if options else 0):
        name = preemption.least_lost(options)
        forbidden = _forbidden(world, options[name], budgets)
        if not forbidden:
            return name, options[name]
        spared |= forbidden
        again = _fewest(world, name, asked, budgets, spared)
        if again:
            options[name] = again
        else:
            del options[name]
        if not options:
            break
    return None


def _forbidden(world: World, victims: Victims, budgets: Budgets) -> set[str]:
    """Return the allocations of those that their budgets do not allow to be evicted together."""
    spent: collections.Counter[tuple[str, str]] = collections.Counter()
    forbidden = set()
    for victim in victims:
        manifest = world.manifest(victim.allocation) or {}
        if budgets.against(manifest, spent):
            forbidden.add(victim.allocation.id)
        spent.update(budgets.of_pod(manifest))
    return forbidden


def _fewest(world: World, name: str, asked: RequestingPod, budgets: Budgets, spared: set[str]) -> Victims | None:
    """Return the pods to evict from this node, possibly none; None if no eviction makes room."""
    view, priority = world.views[name], pod.priority(asked.manifest)
    candidates, ending = [], []
    for entry in view.node.allocations:
        manifest = world.manifest(entry)
        if entry.is_backfill_reservation or manifest is None:
            continue
        metadata = manifest.get("metadata") or {}
        if metadata.get("deletionTimestamp") or pod.is_terminal(manifest):
            ending.append(entry)
        elif (
            pod.priority(manifest) < priority
            and entry.id not in spared
            and not evicting.protected(manifest, max_priority=priority - 1)
            and not budgets.forbids(manifest)
        ):
            candidates.append(Victim(entry, pod.priority(manifest), str(metadata.get("creationTimestamp") or "")))
    if not candidates and not ending:
        return None
    constraints = asked.request.constraints
    constraints = dataclasses.replace(constraints, not_uuids=(*constraints.not_uuids, *_reserved(view)))
    request = dataclasses.replace(asked.request, constraints=constraints)
    node_filter = world.node_filter

    def fits(gone: Victims) -> bool:
        with _without(world, name, [*ending, *(victim.allocation for victim in gone)]):
            unfit = node_filter(asked.manifest, request)
            answer = world.place(
                asked.manifest, request, node_filter=lambda other: unfit(other) if other == name else "is another node"
            )
        return isinstance(answer, Placement) and answer.isolation is not Isolation.MIG

    return preemption.fewest(candidates, fits)


@contextlib.contextmanager
def _without(world: World, name: str, entries: Sequence[Allocation]) -> Iterator[None]:
    undone: list[Any] = []
    for entry in entries:
        manifest = world.manifest(entry)
        if manifest is not None:
            undone.append(world.remove(manifest, name, entry))
    try:
        yield
    finally:
        for undo in reversed(undone):
            undo()


def _reserved(view: NodeView) -> tuple[str, ...]:
    reserved = (entry for entry in view.node.allocations if entry.is_backfill_reservation)
    return tuple(uuid for entry in reserved for uuid in entry.gpu_uuids)
