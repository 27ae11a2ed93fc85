"""The evictor: tells pods that cannot use the place they got, and evicts those that their owner creates again.

Either the scheduler cannot bind them (`unschedulable_pods`), or another pod holds their allocation
(`allocation_conflict`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from gpushare import contract
from gpushare.cluster import api_client, api_errors, events
from gpushare.defragmentation import evicting
from gpushare.pod import Controller
from webhook.controllers import unschedulable_pods
from webhook.controllers.touched_nodes import Touched
from webhook.controllers.write_backoff import WriteBackoff
from webhook.metrics import Metrics
from webhook.pods.stored_pod import Pod

logger = logging.getLogger(__name__)

AFTER_SECONDS: Final = 60.0
SURE_SECONDS: Final = 3.0  # pods and GPUNodes come to us by two watches, of which either may be late


class _UnansweredError(Exception):
    """The API server, or somebody whom it asks about evictions, does not answer. 429 is an answer: a budget's."""


class Evictor:
    """`after_seconds`: for how long the scheduler may try first."""

    def __init__(
        self,
        api: api_client.ApiClient,
        recorder: events.Recorder,
        measures: Metrics,
        *,
        after_seconds: float = AFTER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._metrics = measures
        self._clock = clock
        self._sightings = unschedulable_pods.UnschedulableSince(after_seconds)
        self._conflicts = unschedulable_pods.UnschedulableSince(SURE_SECONDS)
        self._allocation_conflict = unschedulable_pods.AllocationConflict()
        self._pace = unschedulable_pods.EvictionRate()
        self._backoff = WriteBackoff()

    async def look(self, stuck_now: Iterable[Pod], touched: Touched) -> float | None:
        """Do what is due; return in how many seconds to look again, None if nobody is stuck.

        stuck_now: all pods that cannot be bound. touched: where to look for conflicts since the last time.
        """
        unschedulable_again = await self._look_unschedulable(stuck_now)
        conflicts_again = await self._look_conflicts(touched)
        return min((again for again in (unschedulable_again, conflicts_again) if again), default=None)

    async def _look_conflicts(self, touched: Touched) -> float | None:
        now = self._clock()
        conflicts = {pod.ref.uid: (pod, holder) for pod, holder in self._allocation_conflict.renew(touched)}
        due, next_at = self._conflicts.overdue({uid: pod for uid, (pod, _) in conflicts.items()}, now=now)
        waits = [] if next_at is None else [next_at - now]
        for pod in due:
            said = unschedulable_pods.explain_conflict(*conflicts[pod.ref.uid])
            self._recorder.record(pod.reference, contract.EVENT_LOST, said, type="Warning")
        waits += await self._evict_in_turn(due, "it has no share of its own")
        return min(waits, default=None)

    async def _look_unschedulable(self, pods: Iterable[Pod]) -> float | None:
        now = self._clock()
        unbound = {pod.ref.uid: pod for pod in pods}
        self._metrics.stuck(len(unbound))
        overdue, next_at = self._sightings.overdue(unbound, now=now)
        waits = [] if next_at is None else [next_at - now]
        for pod in overdue:
            said = unschedulable_pods.explain_unbound(pod)
            self._recorder.record(pod.reference, contract.EVENT_STUCK, said, type="Warning")
        waits += await self._evict_in_turn(overdue, "it could not be bound where it was placed")
        return min(waits, default=None)

    async def _evict_in_turn(self, pods: Iterable[Pod], because: str) -> list[float]:
        """Evict those that have an owner whose pace allows; return how long to wait for the others.

        Where one is not answered, the others are let be until the next time: each would take as long, and all else of
        the placer's round waits for them.
        """
        waits = []
        for pod in pods:
            owner, uid = pod.controller, pod.ref.uid
            if owner is None or not unschedulable_pods.is_recreated(pod):
                continue
            now = self._clock()
            wait_seconds = max(self._pace.wait_seconds(owner, now=now), self._backoff.wait_seconds(uid, now=now))
            if wait_seconds > 0:
                waits.append(wait_seconds)
                continue
            try:
                went = await self._evict(pod, owner, because)
            except _UnansweredError:
                waits.append(self._backoff.failed(uid, now=self._clock()))
                break
            if went:
                self._pace.evicted(owner, now=now)
                self._backoff.worked(uid)
            else:
                waits.append(self._backoff.failed(uid, now=self._clock()))
        return waits

    async def _evict(self, pod: Pod, owner: Controller, because: str) -> bool:
        """Whether it went, or is going to. Raises _UnansweredError."""
        # Of this very state of it: a pod that was bound meanwhile has another version, and stays.
        body = evicting.eviction(pod.ref.namespace, pod.ref.name, uid=pod.ref.uid, resourceVersion=pod.version)
        try:
            async with asyncio.timeout(10.0):
                await self._api.create(f"{pod.path}/eviction", body)
        except (api_errors.ClusterError, TimeoutError) as error:
            said = str(error) or "no answer in time"
            logger.info("Could not evict a stuck pod", extra={"pod": str(pod.ref), "err": said})
            if isinstance(error, TimeoutError) or (isinstance(error, api_errors.Unavailable) and error.status != 429):
                raise _UnansweredError(said) from error
            return False
        self._metrics.replaced()
        logger.warning("Evicted a pod", extra={"pod": str(pod.ref), "owner": owner.name})
        note = f"evicted, because {because}: {owner.kind} {owner.name} recreates it"
        self._recorder.record(pod.reference, contract.EVENT_REPLACED, note, action="Evict")
        return True
