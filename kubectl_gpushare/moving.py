"""Carries out a defragmentation plan: one move at a time, each watched to its end; stops at the first failure.

After each step it checks that the planned room exists: the waiting pod has its share, or the share would fit. GPUs on
which it makes room are cordoned meanwhile, and always uncordoned at the end. A label names the run that cordoned a GPU,
so that a later run can remove the cordons of a killed one; those of an admin are never removed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpushare import contract, pod
from gpushare.defragmentation import cordons, evicting
from gpushare.defragmentation.cordons import Cordon, CordonChange
from gpushare.defragmentation.moves import Closed, DefragPlan, DefragStep, Move
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement
from gpushare.quantity import counted
from gpushare.whatif import world as worlds
from gpushare.whatif.requesting_pod import RequestingPod
from kubectl_gpushare import cordoning, plugin_errors
from kubectl_gpushare.source import chosen_source, live_cluster

LOOK_SECONDS = 1.0


def apply(
    plan: DefragPlan, origin: live_cluster.LiveCluster, say: Callable[[str], None], *, timeout_seconds: float
) -> None:
    total, done = len(plan.moves), 0
    keeper = TemporaryCordon(origin, say)
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
    """Wait for the room that a step was to make; return where the share is. Raises `PluginError` on timeout."""
    until = time.monotonic() + timeout_seconds
    while True:
        where, reason = _looked_for(step, asked, origin)
        if where:
            return where
        if time.monotonic() >= until:
            raise plugin_errors.PluginError(f"still no room for {step.name}: {reason}")
        time.sleep(LOOK_SECONDS)


def _looked_for(step: DefragStep, asked: RequestingPod, origin: live_cluster.LiveCluster) -> tuple[str, str]:
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
    listed = origin.everybody_of if move.is_cpu_only else origin.pods

    def siblings() -> dict[str, pod.PodJson]:
        pods = listed(namespace=namespace)
        return {pod.uid(manifest): manifest for manifest in pods if evicting.owner(manifest)[1] == owner}

    before = siblings()
    if pod.uid(move.manifest) not in before:
        raise plugin_errors.PluginError(f"pod {namespace}/{name} is gone: make a new plan")
    body = evicting.eviction(namespace, name, uid=pod.uid(move.manifest))
    origin.kubectl.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", json.dumps(body))
    until = time.monotonic() + timeout_seconds
    while True:
        now = siblings()
        fresh = [manifest for uid, manifest in now.items() if uid not in before]
        waits = _waits_for(move, now, fresh, kind, origin.replicas(move.manifest))
        if not waits:
            nodes = dict.fromkeys(map(_node, fresh))
            if move.is_cpu_only and move.before in nodes:
                said = f"was evicted, and the scheduler put its replacement on {move.before} again"
                raise plugin_errors.PluginError(f"pod {namespace}/{name} {said}")
            return f"is on {', '.join(nodes)} now" if nodes else f"is gone, and its {kind} wants no replacement"
        # Only after another check: a condition that became true during the last pause is no failure.
        if time.monotonic() >= until:
            said = f"was evicted, and after {timeout_seconds:.0f} s {waits}"
            raise plugin_errors.PluginError(f"pod {namespace}/{name} {said}")
        time.sleep(LOOK_SECONDS)


def _waits_for(
    move: Move, siblings: Mapping[str, pod.PodJson], fresh: Sequence[pod.PodJson], kind: str, wanted: int
) -> str:
    """Return what the move waits for; empty once the pod has ended and its owner has all its replicas, all placed.

    siblings: the owner's pods, by UID; fresh: those created since. All of these count, because a ReplicaSet does not
    record which pod replaces which, and may be scaled up meanwhile. wanted: replicas.
    """
    for successor in fresh:
        name, reason = "/".join(pod.namespaced_name(successor)), pod.annotations_of(successor).get(contract.REASON)
        if contract.SCHEDULING_GATE in pod.gates(successor):
            return f"its replacement {name} waits: {reason or 'not placed yet'}"
        if not _node(successor) and not pod.asks_for_share(successor):
            conditions = (successor.get("status") or {}).get("conditions") or ()
            messages = {condition.get("type"): condition.get("message") for condition in conditions}
            reason = messages.get("PodScheduled") or "the scheduler has given no reason yet"
            return f"its replacement {name} is not scheduled: {reason}"
        if pod.asks_for_share(successor) and contract.ALLOCATION not in pod.annotations_of(successor):
            return f"its replacement {name} has no share"
    if pod.uid(move.manifest) in siblings:
        return "it has not ended yet"
    live = sum(
        not pod.is_terminal(manifest) and not manifest["metadata"].get("deletionTimestamp")
        for manifest in siblings.values()
    )
    if live < wanted:
        return f"its {kind} has {live} of {wanted} pods" if fresh else f"its {kind} has created no new pod"
    return ""


def _node(manifest: pod.PodJson) -> str:
    """Return the node where the pod has its share, or, without a share, where it is bound."""
    if pod.asks_for_share(manifest):
        return str(pod.annotations_of(manifest).get(contract.NODE, ""))
    return str((manifest.get("spec") or {}).get("nodeName") or "")


Say = Callable[[str], None]


def clean_up(origin: live_cluster.LiveCluster, nodes: Sequence[GpuNode], say: Say) -> None:
    """Uncordon GPUs that interrupted runs left behind. Raises `PluginError` if another run is under way."""
    now = time.time()
    kept = cordons.sentences(nodes, now=now, only_active=True)
    if kept:
        raise plugin_errors.PluginError(
            f"{'; '.join(kept)}: wait until it ends; if it was killed, run `kubectl gpushare uncordon` for them"
        )
    for node in nodes:
        if left := cordons.left_behind(node, now=now):
            # Only unchanged marks: a mark that was renewed in the meantime belongs to a run that is still alive.
            opened = _open(origin, node.name, functools.partial(_is_among, left))
            if opened:
                whose = "a defrag --apply that did not come to its end had left them so"
                say(f"uncordoned {counted(len(opened), 'GPU')} of {node.name}: {whose}")


def _is_among(left: Mapping[str, Cordon], uuid: str, mark: Cordon) -> bool:
    return left.get(uuid) == mark


class TemporaryCordon:
    """The GPUs that one run keeps cordoned."""

    def __init__(self, origin: live_cluster.LiveCluster, say: Say) -> None:
        self._origin = origin
        self._say = say
        self._by = secrets.token_hex(4)
        self._ours: dict[str, frozenset[str]] = {}  # by node

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Uncordon everything at the end; if that fails, print the command that does it by hand."""
        first: BaseException | None = None
        try:
            yield
        except BaseException as error:
            first = error
        for name in self._ours:
            try:
                self._release(name, self._ours[name])
            except BaseException as error:  # `_release` has reported it; go on with the other nodes
                first = first or error
        if first is not None:  # the first error is the cause
            raise first

    def close(self, wanted: Closed, *, seconds: float) -> None:
        for name in dict.fromkeys([*self._ours, *(name for name, _ in wanted)]):
            uuids = frozenset(uuid for node, uuid in wanted if node == name)
            before = self._ours.get(name, frozenset())
            if before - uuids:
                self._release(name, before - uuids)
            if uuids:
                self._cordon(name, uuids, time.time() + seconds)

    def _cordon(self, name: str, uuids: frozenset[str], until: float) -> None:
        def change(now: GpuNode) -> CordonChange:
            kept = cordons.extend(now, uuids, Cordon(self._by, until))
            if kept is None:
                raise plugin_errors.PluginError(f"another `defrag --apply` is at work on {name}: make a new plan")
            return kept

        fresh = uuids - self._ours.get(name, frozenset())
        # Record it before the write, which may succeed although its answer is lost.
        self._ours[name] = self._ours.get(name, frozenset()) | uuids
        before = cordoning.swap(self._origin, name, change)
        if fresh - before.cordoned:
            self._say(f"cordoned {counted(len(fresh - before.cordoned), 'GPU')} of {name} for the time being")

    def _release(self, name: str, uuids: frozenset[str]) -> None:
        if not uuids:
            return
        try:
            opened = _open(self._origin, name, lambda uuid, mark: uuid in uuids and mark.by == self._by)
        except BaseException:
            self._say(
                f"warning: {counted(len(uuids), 'GPU')} of {name} may be left cordoned: a later "
                f"`kubectl gpushare defrag --apply` uncordons what is left, or do it now with "
                f"`kubectl gpushare uncordon gpu {' '.join(sorted(uuids))}`"
            )
            raise
        self._ours[name] -= uuids
        if opened:
            self._say(f"uncordoned {counted(len(opened), 'GPU')} of {name} again")


def _open(origin: live_cluster.LiveCluster, name: str, may_open: Callable[[str, Cordon], bool]) -> frozenset[str]:
    """Uncordon the GPUs of a node whose marks satisfy `may_open`; return their UUIDs."""
    before = cordoning.swap(origin, name, lambda now: cordons.release(now, may_open))
    return frozenset(cordons.release(before, may_open).marks)
