"""Carries out a defragmentation plan: one move at a time, each watched to its end; stops at the first failure.

After each step it checks that the planned room exists: the waiting pod has its share, or the share would fit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable

from gpushare import contract, pod
from gpushare.defragmentation import cordons, evicting
from gpushare.defragmentation.evicting import Sibling
from gpushare.defragmentation.moves import DefragPlan, DefragStep, Move
from gpushare.placement import Placement
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod
from kubectl_gpushare import closing, plugin_errors
from kubectl_gpushare.source import chosen_source, live_cluster

LOOK_SECONDS = 1.0


def apply(
    plan: DefragPlan, origin: live_cluster.LiveCluster, say: Callable[[str], None], *, timeout_seconds: float
) -> None:
    """Make the moves of the plan in order. Raises `PluginError` at the first that fails."""
    total, done = len(plan.moves), 0
    keeper = closing.TemporaryCordon(origin, say)
    try:
        for step in plan.steps:
            if not step.moves:
                continue
            with keeper.kept():
                for move in step.moves:
                    name = "/".join(pod.namespaced_name(move.manifest))
                    keeper.close(move.closed, seconds=timeout_seconds + cordons.MORE_SECONDS)
                    say(f"[{done + 1}/{total}] evicting {name} from {move.before}")
                    where = _move(move, origin, timeout_seconds)
                    done += 1
                    say(f"[{done}/{total}] {name} {where}")
            if step.asked is not None:
                say(_outcome(step, step.asked, origin, timeout_seconds))
    except plugin_errors.PluginError as error:
        raise plugin_errors.PluginError(
            f"stopped after {done} of {total} moves: {error}; nothing else was moved"
        ) from error
    except KeyboardInterrupt:
        say(f"interrupted after {done} of {total} moves; an evicted pod is recreated by its owner all the same")
        raise


def _outcome(step: DefragStep, asked: RequestingPod, origin: live_cluster.LiveCluster, timeout_seconds: float) -> str:
    """Wait for the room that a step was to make; return where the share is or would go. Raises `PluginError` on
    timeout.
    """
    until = time.monotonic() + timeout_seconds
    while True:
        where, reason = _looked_for(step, asked, origin)
        if where:
            return where
        if time.monotonic() >= until:
            raise plugin_errors.PluginError(f"still no room for {step.name}: {reason}")
        time.sleep(LOOK_SECONDS)


def _looked_for(step: DefragStep, asked: RequestingPod, origin: live_cluster.LiveCluster) -> tuple[str, str]:
    """Return where the share is or would go, as a sentence; or an empty text and why it does not fit."""
    manifest = asked.manifest
    if pod.uid(manifest):  # the pod exists: the placer has to notice the room
        now = origin.pod(*pod.namespaced_name(manifest))
        annotations = pod.annotations_of(now)
        if contract.ALLOCATION in annotations:
            return f"{step.name} is on {annotations.get(contract.NODE, '')} now", ""
        return "", annotations.get(contract.REASON, "the placer has not tried it")
    snapshot = chosen_source.everything(origin, [manifest])
    world = snapshot.world(claims_are_all=True)
    answer = world.place(manifest, asked.request)
    if isinstance(answer, Placement):
        return f"there is room for {step.name} on {worlds.gpus(answer, world.views)}", ""
    return "", str(answer)


def _move(move: Move, origin: live_cluster.LiveCluster, timeout_seconds: float) -> str:
    """Evict a pod and wait until its owner has placed a replacement; return where, as a sentence."""
    namespace, name = pod.namespaced_name(move.manifest)
    kind, owner = evicting.owner(move.manifest)
    origin.replicas(move.manifest)  # before the eviction: fails here without the right to read it
    pods = origin.everybody_of if move.is_cpu_only else origin.pods
    before = {sibling.uid for sibling in _siblings(pods(namespace=namespace), owner)}
    if pod.uid(move.manifest) not in before:
        raise plugin_errors.PluginError(f"pod {namespace}/{name} is gone: make a new plan")
    body = evicting.eviction(namespace, name, uid=pod.uid(move.manifest))
    origin.kubectl.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", json.dumps(body))
    until = time.monotonic() + timeout_seconds
    while True:
        siblings = _siblings(pods(namespace=namespace), owner)
        waits = evicting.waits_for(
            pod.uid(move.manifest), siblings, before=before, kind=kind, wanted=origin.replicas(move.manifest)
        )
        if not waits:
            nodes = dict.fromkeys(successor.node for successor in evicting.successors(siblings, before))
            if move.is_cpu_only and move.before in nodes:
                said = f"was evicted, and the scheduler put its replacement on {move.before} again"
                raise plugin_errors.PluginError(f"pod {namespace}/{name} {said}")
            return f"is on {', '.join(nodes)} now" if nodes else f"is gone, and its {kind} wants no replacement"
        # Only after another check: a condition that became true during the last pause is no failure.
        if time.monotonic() >= until:
            said = f"was evicted, and after {timeout_seconds:.0f} s {waits}"
            raise plugin_errors.PluginError(f"pod {namespace}/{name} {said}")
        time.sleep(LOOK_SECONDS)


def _siblings(pods: Iterable[pod.PodJson], owner: str) -> list[Sibling]:
    return [_sibling(manifest) for manifest in pods if evicting.owner(manifest)[1] == owner]


def _sibling(manifest: pod.PodJson) -> Sibling:
    annotations = pod.annotations_of(manifest)
    is_cpu_only = not pod.asks_for_share(manifest)
    scheduled = str((manifest.get("spec") or {}).get("nodeName") or "")
    return Sibling(
        uid=pod.uid(manifest),
        name="/".join(pod.namespaced_name(manifest)),
        node=scheduled if is_cpu_only else annotations.get(contract.NODE, ""),
        is_placed=bool(scheduled) if is_cpu_only else contract.ALLOCATION in annotations,
        is_gated=contract.SCHEDULING_GATE in pod.gates(manifest),
        is_live=not pod.is_terminal(manifest) and not manifest["metadata"].get("deletionTimestamp"),
        reason=_unscheduled(manifest) if is_cpu_only else annotations.get(contract.REASON, ""),
        is_cpu_only=is_cpu_only,
    )


def _unscheduled(manifest: pod.PodJson) -> str:
    """Return the scheduler's own reason why a pod has no node; empty if there is none."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return next(
        (str(condition.get("message") or "") for condition in conditions if condition.get("type") == "PodScheduled"), ""
    )
