"""Applying: a plan of defragmentation, one move after the other, each watched to its end, up to the first that fails.

GPUs that are to become free take nothing new meanwhile, and whatever happens they do again afterwards.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator

from gpushare import contract, pod
from kubectl_gpushare import cordoning, errors
from kubectl_gpushare.planning import evicting
from kubectl_gpushare.planning.defragmentation import Move, Plan, Step
from kubectl_gpushare.source import cluster

LOOK_SECONDS = 1.0


def apply(plan: Plan, origin: cluster.Cluster, say: Callable[[str], None], *, timeout_seconds: float) -> None:
    """Does what the plan says. Raises `PluginError` at the first move that does not come true."""
    total, done = len(plan.moves), 0
    for step in plan.steps:
        if not step.moves:
            continue
        with _cordoned(step, origin, say):
            for move in step.moves:
                name = "/".join(pod.namespaced_name(move.manifest))
                say(f"[{done + 1}/{total}] evicting {name} from {move.before}")
                try:
                    where = _move(move, origin, timeout_seconds)
                except errors.PluginError as error:
                    raise errors.PluginError(
                        f"stopped after {done} of {total} moves: {error}; nothing else was moved"
                    ) from error
                done += 1
                say(f"[{done}/{total}] {name} is on {where} now")
        say(f"there is room for {step.name} on {step.gpus}")


@contextlib.contextmanager
def _cordoned(step: Step, origin: cluster.Cluster, say: Callable[[str], None]) -> Iterator[None]:
    ours: dict[str, frozenset[str]] = {}
    try:
        for node in dict.fromkeys(node for node, _ in step.cordon):
            uuids = frozenset(uuid for other, uuid in step.cordon if other == node)
            ours[node] = cordoning.swap(origin, node, uuids, cordoned=True)
            say(f"cordoned {len(uuids)} GPU{'' if len(uuids) == 1 else 's'} of {node} for the time being")
        yield
    finally:
        for node, uuids in ours.items():
            cordoning.swap(origin, node, uuids, cordoned=False)
            say(f"uncordoned {node}'s GPUs again")


def _move(move: Move, origin: cluster.Cluster, timeout_seconds: float) -> str:
    """Evict, and wait until the one that comes instead is placed; where."""
    namespace, name = pod.namespaced_name(move.manifest)
    kind, owner = evicting.owner(move.manifest)
    before = {pod.uid(one) for one in _siblings(origin, namespace, owner)}
    if pod.uid(move.manifest) not in before:
        raise errors.PluginError(f"pod {namespace}/{name} is not there any more: make a new plan")
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid(move.manifest)}},
    }
    origin.kubectl.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", json.dumps(body))
    until = time.monotonic() + timeout_seconds
    waits = f"its {kind} has made no new pod"
    while time.monotonic() < until:
        there = _siblings(origin, namespace, owner)
        fresh = [one for one in there if pod.uid(one) not in before]
        left = all(pod.uid(one) != pod.uid(move.manifest) for one in there)
        for one in fresh:
            other = "/".join(pod.namespaced_name(one))
            annotations = pod.annotations_of(one)
            if contract.SCHEDULING_GATE in pod.gates(one):
                waits = f"{other}, made instead of it, waits: {annotations.get(contract.REASON, 'not judged yet')}"
            elif contract.ALLOCATION not in annotations:
                waits = f"{other}, made instead of it, has no share"
            elif left:
                return annotations.get(contract.NODE, "")
            else:
                waits = "it has not ended yet"
        time.sleep(LOOK_SECONDS)
    raise errors.PluginError(f"pod {namespace}/{name} was evicted, and after {timeout_seconds:.0f} s {waits}")


def _siblings(origin: cluster.Cluster, namespace: str, owner: str) -> list[pod.PodJson]:
    return [one for one in origin.pods(namespace=namespace) if evicting.owner(one)[1] == owner]
