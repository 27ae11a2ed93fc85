"""Restore: opens new GPUNodes, and writes again the shares of living pods that the ledger has lost.

A GPUNode can be deleted by hand; its agent recreates it empty, while its pods run on. Their annotations, which only
gpushare may write, say what they hold. Until these are read back, the node is closed (`webhook.store.node_ledger`) and
gets no pods. If the policies that protect them were missing, nothing is restored for a pod that cannot have been placed
(`Pod.may_run`). Pure functions decide what to write; `Restorer` reads, writes and reports.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import codec, contract, errors, ledger, mig_shares
from gpushare import request as requests
from gpushare.allocation import Allocation, GivenShare, Isolation
from gpushare.cluster import api_client, api_errors, events, retrying
from gpushare.gpunode import GpuNode
from gpushare.placement import Placement, request_key
from gpushare.request import Request
from webhook.controllers.touched_nodes import Touched, TouchedNodes
from webhook.metrics import Metrics
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import ledger_store, node_ledger
from webhook.store.api_store import ApiStore


def lost(nodes: Iterable[GpuNode], pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    known = {name for node in nodes for entry in node.allocations for name in (entry.id, entry.pod.uid)}
    names = {node.name for node in nodes}
    lost_on: dict[str, list[Pod]] = collections.defaultdict(list)
    for pod in pods:
        if pod.placed_on in names and known.isdisjoint((pod.allocation_id, pod.ref.uid)) and _is_there(pod):
            lost_on[pod.placed_on].append(pod)
    return dict(lost_on)


def orphaned(there: Collection[str], pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.placed_on not in there and _is_there(pod)]


def carry_over(node: GpuNode, entries: Iterable[Allocation], pods: Iterable[Pod]) -> GpuNode:
    """Return the node with entries of its predecessor whose pods may be stored or ungated at this moment."""
    gated = {pod.ref.uid for pod in pods if pod.is_gated and not pod.has_ended}
    known = {name for entry in node.allocations for name in (entry.id, entry.pod.uid) if name}
    for entry in entries:
        if entry.id in known or entry.pod.uid in known or (entry.pod.uid and entry.pod.uid not in gated):
            continue
        try:
            node = ledger.reserve(node, entry)
        except errors.LedgerError:
            continue  # its GPU is gone; its pod gets an Event when it appears
    return node


def allocation(pod: Pod, node: GpuNode) -> Allocation:
    """Read a pod's allocation from its annotations: what it holds, or else requests. Raises GpushareError."""
    held = pod.annotations.get(contract.HELD)
    request = pod.request
    if held is not None:  # the keys that can be resized may be invalid
        others = {
            key: value
            for key, value in pod.annotations.items()
            if not any(key == known or key.startswith(known + ".") for known in contract.RESIZABLE_KEYS)
        }
        request = requests.read({**others, contract.REQUEST: "1"}, pod.containers, next(iter(pod.containers), ""))
    if isinstance(request, str):
        raise errors.LedgerError(request)
    shares = tuple(_shares(pod, request, node)) if held is None else codec.read_shares(held)
    placement = Placement(node.name, shares, _isolation(pod, request))
    return placement.allocation(request, allocation_id=pod.allocation_id, pod=pod.ref, reserved_until=None)


def restore(node: GpuNode, pods: Sequence[Pod], before: Iterable[Allocation] = ()) -> tuple[GpuNode, dict[str, str]]:
    """Return the node with the shares of these pods, and by UID why a share could not be restored.

    before: entries of its predecessor, if all of them are known. They take precedence over annotations, which a user
    may have changed to resize the pod.
    """
    remembered = {(entry.id, entry.pod.uid): entry for entry in before}
    failed: dict[str, str] = {}
    for pod in sorted(pods, key=lambda pod: pod.created):
        identity, uid = pod.allocation_id, pod.ref.uid
        entries = [entry for entry in node.allocations if not entry.is_backfill_reservation]
        if any(identity == entry.id or uid == entry.pod.uid for entry in entries):
            continue
        try:
            node = ledger.reserve(node, remembered.get((identity, uid)) or allocation(pod, node))
        except errors.GpushareError as error:
            failed[uid] = str(error)
    return node, failed


def _shares(pod: Pod, request: Request, node: GpuNode) -> Iterable[GivenShare]:
    gpus = node.gpu_by_uuid()
    for demand in request_key.in_order(request):  # the agent identifies a share by its position
        key = mutation.uuids_annotation(request, demand.containers[0])
        uuids = [uuid for uuid in pod.annotations.get(key, "").split(",") if uuid]
        for uuid in uuids:
            if uuid not in gpus:
                raise errors.LedgerError(f"{node.name} has no GPU {errors.quoted(uuid)}")
        if len(uuids) != demand.gpus:
            raise errors.LedgerError(f"{key} does not name {demand.gpus} GPUs")
        given = demand.on([gpus[uuid] for uuid in uuids])
        device = pod.annotations.get(contract.MIG_DEVICE, "")
        yield mig_shares.on_device(given, mig_shares.read_device(gpus[uuids[0]], device)) if device else given


def _isolation(pod: Pod, request: Request) -> Isolation:
    """Return the isolation that the pod was given; without that annotation, the one that it requests, or leases."""
    word = pod.annotations.get(contract.ISOLATION_GIVEN, "")
    if not word:
        return request.constraints.isolation
    if word not in set(Isolation):
        raise errors.LedgerError(
            f"{contract.ISOLATION_GIVEN} {errors.quoted(word)} is not one of {', '.join(Isolation)}"
        )
    return Isolation(word)


def _is_there(pod: Pod) -> bool:
    """Whether the pod runs, or may soon run, where it was placed, with a share that gpushare gave it."""
    stays = not pod.has_ended and not pod.is_gated and pod.node in {"", pod.placed_on}
    return bool(pod.allocation_id and pod.placed_on) and stays and pod.may_run


logger = logging.getLogger(__name__)

PODS_SELECTOR: Final = f"{contract.SHARE_LABEL}={contract.SHARE_LABEL_VALUE}"
SURE_SECONDS: Final = 3.0  # pods and GPUNodes come from two watches, and either may lag
AGAIN_SECONDS: Final = 30.0


@dataclasses.dataclass(eq=False)
class Restorer:
    """Restores lost shares. lifetime_seconds: of placements in flight. is_first: no placer ever placed before us."""

    api: api_client.ApiClient
    store: ApiStore
    recorder: events.Recorder
    metrics: Metrics
    _: dataclasses.KW_ONLY
    touched_nodes: TouchedNodes
    lifetime_seconds: float
    is_first: Callable[[], bool]

    def __post_init__(self) -> None:
        self._lost: dict[str, list[Pod]] = {}  # by node
        self._began = math.inf
        self._found_open = False  # when this placer began; only placers open GPUNodes
        self._missed: dict[str, float] = {}  # UID of a pod -> since when its share is missing, or when to retry

    async def reconcile(self, touched: Touched, *, now: float) -> float | None:
        """Restore the shares that are due; return when the next are due, by the clock of `now`, or None."""
        if self._began == math.inf:
            self._began = now
            self._found_open = any(self._is_open(node.name) for node in self.store.stored())
        open_at = await self._open_new(now)
        nodes = [node for node in touched.nodes if self._is_open(node.name)]
        self._lost = {name: pods for name, pods in self._lost.items() if name not in touched.names}
        self._lost.update(lost(nodes, touched.pods))
        there = {node.name for node in self.store.stored()}
        orphans = orphaned(there, self.touched_nodes.placed_elsewhere(there))
        uids = {pod.ref.uid for pods in (*self._lost.values(), orphans) for pod in pods}
        self._missed = {uid: self._missed.get(uid, now + SURE_SECONDS) for uid in uids}
        for name, pods in list(self._lost.items()):
            due = [pod for pod in pods if self._missed[pod.ref.uid] <= now]
            if due:
                self._missed.update((pod.ref.uid, now + AGAIN_SECONDS) for pod in due)
                await self._restore_on(name, due)
        for pod in orphans:
            if self._missed[pod.ref.uid] <= now:
                self._missed[pod.ref.uid] = now + AGAIN_SECONDS
                name = pod.placed_on
                logger.warning("A living pod has no GPUNode", extra={"node": name, "pod": str(pod.ref)})
                note = f"the GPUNode {name}, which had its share, does not exist: the share is "
                note += "restored once the agent creates it"
                self.recorder.record(pod.reference, contract.EVENT_LOST, note, type="Warning", action="Adopt")
        return min((*self._missed.values(), *open_at), default=None)

    async def _open_new(self, now: float) -> list[float]:
        """Open closed nodes whose agent has reported GPUs; return when the others may be opened."""
        closed = [node.name for node in self.store.stored() if node.gpus and self._is_open(node.name) is False]
        due = {name: self._open_at(name, now) for name in closed}
        later = [at for at in due.values() if at > now]
        if len(later) == len(due):
            return later
        try:
            # A consistent read; pods that are created later cannot have been placed on a closed node.
            query = {"labelSelector": PODS_SELECTOR}
            pods = (await self.api.list("/api/v1/pods", query, keep=Pod.from_manifest)).items
        except api_errors.ClusterError as error:
            logger.warning("Could not list pods", extra={"err": str(error)})
            return later
        for name, at in due.items():
            if at <= now:
                await self._open(name, pods)
        return later

    def _is_open(self, name: str) -> bool | None:
        document = self.store.document(name)
        return node_ledger.is_open(document) if document else None

    def _open_at(self, name: str, now: float) -> float:
        """Return when no unknown placement on the former GPUNode can be in flight any more."""
        since = self.store.deleted.unknown_since(name)
        is_first = self.is_first() and not self._found_open
        if since is None or (is_first and since <= self._began):
            return now  # before the first placer, no GPUNode was ever open
        return since + self.lifetime_seconds

    async def _open(self, name: str, pods: Sequence[Pod]) -> None:
        restored: list[Pod] = []
        failed: dict[str, str] = {}

        def change(document: dict[str, Any]) -> dict[str, Any] | None:
            nonlocal restored, failed
            if node_ledger.is_open(document):
                restored, failed = [], {}
                return None
            node = codec.read(document)
            restored = lost([node], pods).get(name, [])
            before = self.store.deleted.entries(name)
            is_known = self.store.deleted.unknown_since(name) is None
            after, failed = restore(node, restored, before if is_known else ())
            after = carry_over(after, before, pods)
            return {**document, "spec": {**(document.get("spec") or {}), **codec.to_spec(after)}}

        try:
            await retrying.compare_and_swap(self.api, f"{contract.GPUNODE_PATH}/{name}", change)
        except api_errors.ClusterError as error:
            logger.warning("Could not open a GPUNode", extra={"node": name, "err": str(error)})
            return
        logger.info("Opened a GPUNode", extra={"node": name, "adopted": len(restored) - len(failed)})
        self._report(name, restored, failed)

    async def _restore_on(self, name: str, suspects: Sequence[Pod]) -> None:
        pods = [pod for suspect in suspects if (pod := await self._read(suspect)) is not None]
        failed: dict[str, str] = {}
        restored: dict[str, Pod] = {}

        def change(node: GpuNode) -> GpuNode:
            # After a conflict, this runs again on the stored node, where restored shares are no longer missing.
            missed = {pod.ref.uid: pod for pod in lost([node], pods).get(name, [])}
            after, wrong = restore(node, [*missed.values()])
            restored.update(missed)
            for uid in missed:
                failed.pop(uid, None)
            failed.update(wrong)
            return after if after.allocations != node.allocations else node

        try:
            await self.store.refresh(name)  # our cache may lag behind the write of its share
            await self.store.commit(name, change)
        except (ledger_store.UnreachableError, errors.LedgerError) as error:
            logger.warning("Could not restore lost shares", extra={"node": name, "err": str(error)})
            return
        self._report(name, [*restored.values()], failed)

    async def _read(self, suspect: Pod) -> Pod | None:
        try:
            pod = Pod.from_manifest(await self.api.get(suspect.path))
        except api_errors.ClusterError as error:
            logger.info("Could not read a pod", extra={"pod": str(suspect.ref), "err": str(error)})
            return None
        return pod if pod.ref.uid == suspect.ref.uid else None

    def _report(self, name: str, restored: Sequence[Pod], failed: Mapping[str, str]) -> None:
        for pod in restored:
            who, why = str(pod.ref), failed.get(pod.ref.uid)
            if why is None:
                self.metrics.changed_allocations("adopted", 1)
                logger.warning("Restored the lost share of a pod", extra={"node": name, "pod": who})
                note = f"its share on {name} was missing in the ledger and was restored"
                self.recorder.record(pod.reference, contract.EVENT_ADOPTED, note, action="Adopt")
            else:
                logger.error("A living pod has no share in the ledger", extra={"node": name, "pod": who, "err": why})
                note = f"its share on {name} is missing in the ledger and could not be restored: {why}"
                self.recorder.record(pod.reference, contract.EVENT_LOST, note, type="Warning", action="Adopt")
