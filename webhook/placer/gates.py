"""Gates: gives the pods that wait their turn, opens the gates of those that are placed, and tells the others why not.

A pod is placed by two writes: its share into the ledger, with the pod's uid, then one patch of the pod. A placer that
ends between them leaves a share that belongs to a gated pod, which the next one finds and goes on from.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from gpushare import contract, errors, pod
from gpushare.cluster import client, events
from gpushare.cluster import errors as cluster_errors
from gpushare.request import Request
from webhook.ledger.api_store import ApiStore
from webhook.ledger.reservation import Reservation
from webhook.metrics import Metrics
from webhook.placer import backfill, gang, queue, waiting
from webhook.placer.copies import trimmed
from webhook.placer.index import Index
from webhook.placer.telling import Telling
from webhook.placer.turns import Turns
from webhook.pods import mutation, waits

__all__ = ["Gates", "trimmed"]

logger = logging.getLogger(__name__)

PodJson = Mapping[str, Any]

OPEN_TRIES: Final = 4
BEHIND_SECONDS: Final = 2.0  # until those have their turn that a round left out


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
        bound: backfill.Bound = backfill.DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._metrics = measures
        self._wall_clock = wall_clock
        self._telling = Telling(api, recorder, clock=clock)
        self._arranger = gang.Arranger()
        self._opened: dict[str, str] = {}  # uid -> the version that was opened, until our copy shows a later one
        self._turns = Turns(
            ledger_now, reservation, opens=self._open, still_gated=self._still_gated, warns=self._warn, bound=bound
        )

    async def open_all(self, pods: Index, *, now: float | None = None) -> float | None:
        """Place what can be placed; return in how many seconds there is more to tell, None if there is nothing.

        now: Unix seconds, of the clock that the pods' age is judged by.
        """
        shown = {uid: _version(pods.waiting[uid]) for uid in self._opened if uid in pods.waiting}
        self._opened = {uid: version for uid, version in self._opened.items() if shown.get(uid) == version}
        arranged = self._arranger.arrange(pods.waiting, pods.members, opened=self._opened)
        gated = [*(one for unit in arranged.units for one in unit.members), *(one for one, _ in arranged.held_back)]
        self._telling.forget_all_but(pod.uid(one) for one in gated)
        now = self._wall_clock() if now is None else now
        await asyncio.sleep(0)  # with very many, each of these takes a while, and the event loop is the webhook's too
        told = await self._turns.take(pods, arranged, now=now)
        self._metrics.waiting(
            waiting.counts(told), longest_seconds=waiting.longest_seconds((one for one, _ in told), now=now)
        )
        await asyncio.sleep(0)
        again = await self._telling.tell([(one, refusal.reason) for one, refusal in told])
        return min(again or BEHIND_SECONDS, BEHIND_SECONDS) if self._turns.is_behind else again

    def came(self, one: PodJson) -> None:
        """A pod was created: if it waits, nobody else's many keep it waiting for long."""
        if queue.waits(one):
            self._turns.came(pod.namespaced_name(one)[0])

    def grew(self, one: PodJson) -> None:
        """A pod that was placed before has taken more where it is."""
        self._turns.grew(one)

    async def _open(self, one: PodJson, request: Request, placed: mutation.Placed) -> None:
        """Open a gate, also when others write to the pod at the same time: then on the pod as it is now."""
        who = {"namespace": pod.namespaced_name(one)[0], "name": pod.namespaced_name(one)[1]}
        known = one
        for attempt in range(1, OPEN_TRIES + 1):
            try:
                changes = mutation.patch(known, mutation.open_gate(known, request, placed))
            except errors.LedgerError as error:
                logger.warning("A gated pod has a share that is not its own", extra={"pod": who, "err": str(error)})
                return
            tests = [
                {"op": "test", "path": "/metadata/uid", "value": pod.uid(one)},
                {"op": "test", "path": "/metadata/resourceVersion", "value": _version(known)},
            ]
            try:
                await self._api.patch(_path(one), [*tests, *changes], client.JSON_PATCH)
                break
            except cluster_errors.NotFound:
                return  # deleted meanwhile: its share is released like any other
            except cluster_errors.ClusterError as error:
                logger.info("Could not open a gate", extra={"pod": who, "attempt": attempt, "err": str(error)})
                fresh = await self._read(one) if attempt < OPEN_TRIES else None
                if fresh is None or not _is_as_judged(fresh, one):
                    return  # its next version comes with the watch, and with it the next try
                known = fresh
        self._opened[pod.uid(one)] = _version(one)
        self._metrics.placed()
        uuids = ",".join(uuid for share in placed.shares for uuid in share.gpu_uuids)
        logger.info("Placed a gated pod", extra={"pod": who, "node": placed.node, "gpus": uuids})
        self._recorder.record(one, contract.EVENT_PLACED, f"placed on {placed.node}, {uuids}")

    def _warn(self, one: PodJson, sentence: str) -> None:
        self._recorder.record(one, contract.EVENT_GROUP_APART, sentence, type="Warning")

    async def _still_gated(self, pods: Collection[PodJson]) -> list[str]:
        """Of these pods the uids of those that are gated now, by a read that lags behind nothing."""
        found = await asyncio.gather(*(self._read(one) for one in pods))
        return [
            pod.uid(now)
            for one, now in zip(pods, found, strict=True)
            if now is not None and pod.uid(now) == pod.uid(one) and contract.SCHEDULING_GATE in pod.gates(now)
        ]

    async def _read(self, one: PodJson) -> PodJson | None:
        try:
            return await self._api.get(_path(one))
        except cluster_errors.ClusterError as error:
            logger.info("Could not read a gated pod", extra={"pod": _path(one), "err": str(error)})
            return None


def _is_as_judged(fresh: PodJson, one: PodJson) -> bool:
    """Whether it is the same pod, still gated, and nothing has changed of what decided where it may run."""
    return (
        pod.uid(fresh) == pod.uid(one)
        and contract.SCHEDULING_GATE in pod.gates(fresh)
        and waits.foreign_gates(fresh) == waits.foreign_gates(one)
        and queue.kind(fresh) == queue.kind(one)
    )


def _path(one: PodJson) -> str:
    return "/api/v1/namespaces/{}/pods/{}".format(*pod.namespaced_name(one))


def _version(one: PodJson) -> str:
    return str(one["metadata"].get("resourceVersion", ""))
