"""Moving: carries out a defragmentation plan: one move at a time, each watched to its end, up to the first failure.

After each step it checks that the planned room exists: the waiting pod has its share, or the share would fit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from gpushare import contract, pod
from gpushare.defragmentation import evicting
from gpushare.defragmentation.plan import DefragPlan, DefragStep
from gpushare.defragmentation.playing import Move
from gpushare.placement import Placement
from gpushare.whatif import world as worlds
from gpushare.whatif.world import RequestingPod
from kubectl_gpushare import closing, plugin_errors
from kubectl_gpushare.source import chosen_source, live_cluster

LOOK_SECONDS = 1.0
# Cordons outlast the time limit of a move by this much, so that another run leaves them alone even if its clock is
# ahead of ours by nearly as much.
_MORE_SECONDS = 300.0


def apply(
    plan: DefragPlan, origin: live_cluster.LiveCluster, say: Callable[[str], None], *, timeout_seconds: float
) -> None:
    """Makes the moves of the plan in order. Raises `PluginError` at the first that fails."""
    total, done = len(plan.moves), 0
    keeper = closing.TemporaryCordon(origin, say)
    try:
        for step in plan.steps:
            if not step.moves:
                continue
            with keeper.kept():
                for move in step.moves:
                    name = "/".join(pod.namespaced_name(move.manifest))
                    keeper.close(move.closed, seconds=timeout_seconds + _MORE_SECONDS)
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
    """Waits for the room that a step was to make; where the share is or would go. Raises `PluginError` on timeout."""
    until = time.monotonic() + timeout_seconds
    while True:
        where, reason = _looked_for(step, asked, origin)
        if where:
            return where
        if time.monotonic() >= until:
            raise plugin_errors.PluginError(f"there is still no room for {step.name}: {reason}")
        time.sleep(LOOK_SECONDS)


def _looked_for(step: DefragStep, asked: RequestingPod, origin: live_cluster.LiveCluster) -> tuple[str, str]:
    """Where the share is or would go, as a sentence; or an empty text and why it does not fit."""
    manifest = asked.manifest
    if pod.uid(manifest):  # a pod that exists: the placer has to see that there is room
        now = origin.pod(*pod.namespaced_name(manifest))
        annotations = pod.annotations_of(now)
        if contract.ALLOCATION in annotations:
            return f"{step.name} is on {annotations.get(contract.NODE, '')} now", ""
        return "", annotations.get(contract.REASON, "it was not judged yet")
    snapshot = chosen_source.everything(origin, [manifest])
    world = snapshot.world(claims_are_all=True)
    answer = world.place(manifest, asked.request)
    if isinstance(answer, Placement):
        return f"there is room for {step.name} on {worlds.gpus(answer, world.views)}", ""
    return "", str(answer)


def _move(move: Move, origin: live_cluster.LiveCluster, timeout_seconds: float) -> str:
    """Evicts a pod and waits until its owner has a placed pod in its stead; where that is, as a sentence."""
    namespace, name = pod.namespaced_name(move.manifest)
    kind, owner = evicting.owner(move.manifest)
    origin.replicas(move.manifest)  # a missing right to read it ends this before the eviction
    before = {pod.uid(sibling) for sibling in _siblings(origin, namespace, owner)}
    if pod.uid(move.manifest) not in before:
        raise plugin_errors.PluginError(f"pod {namespace}/{name} is not there any more: make a new plan")
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid(move.manifest)}},
    }
    origin.kubectl.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", json.dumps(body))
    until = time.monotonic() + timeout_seconds
    waits = ""
    while time.monotonic() < until:
        there = _siblings(origin, namespace, owner)
        fresh = [sibling for sibling in there if pod.uid(sibling) not in before]
        waits = _waits(move, kind, there, fresh, origin)
        if not waits:
            nodes = dict.fromkeys(pod.annotations_of(successor).get(contract.NODE, "") for successor in fresh)
            return f"is on {', '.join(nodes)} now" if nodes else f"is gone, and its {kind} wants no other instead"
        time.sleep(LOOK_SECONDS)
    raise plugin_errors.PluginError(f"pod {namespace}/{name} was evicted, and after {timeout_seconds:.0f} s {waits}")


def _waits(
    move: Move, kind: str, there: Sequence[pod.PodJson], fresh: Sequence[pod.PodJson], origin: live_cluster.LiveCluster
) -> str:
    """What the move waits for; empty once the pod has left and its owner has all its replicas, all of them placed.

    All new pods count: a ReplicaSet does not say which pod replaces which, and it may be scaled up meanwhile.
    """
    wanted = origin.replicas(move.manifest)
    live = [
        sibling
        for sibling in there
        if not pod.is_terminal(sibling) and not sibling["metadata"].get("deletionTimestamp")
    ]
    for successor in fresh:
        other = "/".join(pod.namespaced_name(successor))
        annotations = pod.annotations_of(successor)
        if contract.SCHEDULING_GATE in pod.gates(successor):
            return f"{other}, made instead of it, waits: {annotations.get(contract.REASON, 'not judged yet')}"
        if contract.ALLOCATION not in annotations:
            return f"{other}, made instead of it, has no share"
    if any(pod.uid(sibling) == pod.uid(move.manifest) for sibling in there):
        return "it has not ended yet"
    if len(live) < wanted:
        return f"its {kind} has {len(live)} of {wanted} pods" if fresh else f"its {kind} has made no new pod"
    return ""


def _siblings(origin: live_cluster.LiveCluster, namespace: str, owner: str) -> list[pod.PodJson]:
    return [manifest for manifest in origin.pods(namespace=namespace) if evicting.owner(manifest)[1] == owner]
