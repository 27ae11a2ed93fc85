"""Gates: places the pods that wait, and tells those that go on waiting why.

A pod is placed by two writes: its share into the ledger, with the pod's uid, then one patch of the pod. A placer that
ends between them leaves a share that belongs to a gated pod, which the next one finds and goes on from.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpushare import contract, errors, pod
from gpushare import request as requests
from gpushare.allocation import PodRef
from gpushare.cluster import client, events
from gpushare.cluster import errors as cluster_errors
from gpushare.refusal import Refusal
from gpushare.request import Request
from webhook import bookkeeping, mutation, queue
from webhook.api_store import ApiStore
from webhook.metrics import Metrics
from webhook.reservation import Reservation

logger = logging.getLogger(__name__)

PodJson = Mapping[str, Any]

PLACED_AT_ONCE: Final = 32
TELL_AGAIN_SECONDS: Final = 15.0  # the numbers of a reason change with every pod on a busy cluster
_CHANGED = (
    "its gpushare.io annotations no longer agree with the resources it was admitted with: "
    "delete the pod and create it anew"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Told:
    sentence: str
    at: float


class Gates:
    """Opens gates, in order, as far as there is room."""

    def __init__(
        self,
        api: client.Client,
        ledger_now: ApiStore,
        reservation: Reservation,
        recorder: events.Recorder,
        measures: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._store = ledger_now
        self._reservation = reservation
        self._recorder = recorder
        self._metrics = measures
        self._clock = clock
        self._told: dict[str, _Told] = {}  # by uid of the pod
        self._opened: dict[str, str] = {}  # uid -> the version that was patched, until our copy shows a later one
        self._slots = asyncio.Semaphore(PLACED_AT_ONCE)

    async def open_all(self, pods: list[PodJson]) -> bool:
        """Place what can be placed; return whether a reason is still to be told, later."""
        waiting = [one for one in queue.waiting(pods) if self._opened.get(pod.uid(one)) != _version(one)]
        self._metrics.gated(len(waiting))
        uids = {pod.uid(one) for one in waiting}
        self._told = {uid: told for uid, told in self._told.items() if uid in uids}
        self._opened = {pod.uid(one): _version(one) for one in pods if self._opened.get(pod.uid(one)) == _version(one)}
        held = self._held(uids)
        refused: dict[str, Refusal] = {}
        untold: list[tuple[PodJson, str]] = []
        async with asyncio.TaskGroup() as tasks:
            for one in waiting:
                await self._slots.acquire()
                task = tasks.create_task(self._open_one(one, held.get(pod.uid(one)), refused, untold))
                task.add_done_callback(lambda _: self._slots.release())
                # It runs until its share is in our view, before the next is placed: the queue's order is kept.
                await asyncio.sleep(0)
        return not all([await self._tell(one, sentence) for one, sentence in untold])

    async def _open_one(
        self,
        one: PodJson,
        held: bookkeeping.Entry | None,
        refused: dict[str, Refusal],
        untold: list[tuple[PodJson, str]],
    ) -> None:
        try:
            request = requests.parse(one)
        except errors.RequestError as error:
            untold.append((one, str(error)))
            return
        if not _agrees(one, request):
            untold.append((one, _CHANGED))
            return
        kind = queue.kind(one)
        if held is not None:
            hostname = self._store.hostname(held.node)
            outcome: mutation.Placed | Refusal = mutation.Placed(
                held.allocation.id, held.node, hostname, held.allocation.shares
            )
        elif kind in refused:
            outcome = refused[kind]
        else:
            outcome = await self._reservation.reserve(one, request, PodRef(*pod.namespaced_name(one), pod.uid(one)))
        if isinstance(outcome, Refusal):
            refused.setdefault(kind, outcome)
            untold.append((one, outcome.reason))
        else:
            await self._open(one, request, outcome)

    def _held(self, uids: set[str]) -> dict[str, bookkeeping.Entry]:
        """Shares that gated pods have already."""
        found: dict[str, bookkeeping.Entry] = {}
        for view in self._store.views():
            for allocation in view.node.allocations:
                uid = allocation.pod.uid
                if uid in uids and (uid not in found or allocation.id < found[uid].allocation.id):
                    found[uid] = bookkeeping.Entry(view.node.name, allocation)
        return found

    async def _open(self, one: PodJson, request: Request, placed: mutation.Placed) -> None:
        who = {"namespace": pod.namespaced_name(one)[0], "name": pod.namespaced_name(one)[1]}
        try:
            changes = mutation.patch(one, mutation.open_gate(one, request, placed))
        except errors.LedgerError as error:
            logger.warning("A gated pod has a share that is not its own", extra={"pod": who, "err": str(error)})
            return
        known = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid(one)},
            {"op": "test", "path": "/metadata/resourceVersion", "value": _version(one)},
        ]
        try:
            await self._api.patch(_path(one), [*known, *changes], client.JSON_PATCH)
        except cluster_errors.NotFound:
            return  # deleted meanwhile: its share is released like any other
        except cluster_errors.ClusterError as error:
            # Changed meanwhile, as a rule: the next version comes with the watch, and with it the next try.
            logger.info("Could not open a gate", extra={"pod": who, "err": str(error)})
            return
        self._opened[pod.uid(one)] = _version(one)
        self._metrics.placed()
        uuids = ",".join(uuid for share in placed.shares for uuid in share.gpu_uuids)
        logger.info("Placed a gated pod", extra={"pod": who, "node": placed.node, "gpus": uuids})
        self._recorder.record(one, contract.EVENT_PLACED, f"placed on {placed.node}, {uuids}")

    async def _tell(self, one: PodJson, sentence: str) -> bool:
        """Write the reason where it changed; return False if it is too early to do so again."""
        uid, now = pod.uid(one), self._clock()
        told = self._told.get(uid)
        if told is not None and told.sentence == sentence:
            return True
        if told is not None and now - told.at < TELL_AGAIN_SECONDS:
            return False
        self._told[uid] = _Told(sentence, now)
        self._recorder.record(one, contract.EVENT_GATED, sentence)
        if pod.annotations_of(one).get(contract.REASON) == sentence:
            return True
        # With the uid: a pod of the same name that was made since then is another.
        body = {"metadata": {"uid": uid, "annotations": {contract.REASON: sentence}}}
        try:
            await self._api.patch(_path(one), body)
        except cluster_errors.ClusterError as error:
            logger.info("Could not write the reason of a gated pod", extra={"pod": _path(one), "err": str(error)})
        return True


def trimmed(item: dict[str, Any]) -> dict[str, Any]:
    """What of a pod the placer looks at; less of one that does not wait."""
    metadata = {
        key: value for key, value in item["metadata"].items() if key not in {"managedFields", "ownerReferences"}
    }
    kept = {"apiVersion": item.get("apiVersion"), "kind": item.get("kind"), "metadata": metadata}
    status = {"phase": (item.get("status") or {}).get("phase")}
    spec = item.get("spec") or {}
    if contract.SCHEDULING_GATE not in pod.gates(item):
        return {**kept, "spec": {}, "status": status}
    small = {
        key: spec[key]
        for key in ("nodeSelector", "affinity", "tolerations", "schedulingGates", "priority")
        if key in spec
    }
    for listed in ("containers", "initContainers"):
        if spec.get(listed):
            small[listed] = [{key: one[key] for key in ("name", "resources") if key in one} for one in spec[listed]]
    return {**kept, "spec": small, "status": status}


def _agrees(one: PodJson, request: Request) -> bool:
    """Whether the resources, which cannot change, are still those of the annotations, which can."""
    wanted = {name: mutation.resources(demand, name) for demand in request.demands for name in demand.containers}
    everyone = {
        str(container.get("name")): container for container in (*pod.containers(one), *pod.init_containers(one))
    }
    return all(mutation.has_resources(everyone[name], wanted.get(name, {})) for name in everyone)


def _path(one: PodJson) -> str:
    return "/api/v1/namespaces/{}/pods/{}".format(*pod.namespaced_name(one))


def _version(one: PodJson) -> str:
    return str(one["metadata"].get("resourceVersion", ""))
