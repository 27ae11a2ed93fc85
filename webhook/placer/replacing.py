"""Replacing: tells of pods that are stuck where they were placed, and evicts those that their owner makes anew."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gpushare import contract, pod
from gpushare.cluster import client, events
from gpushare.cluster import errors as cluster_errors
from webhook.metrics import Metrics
from webhook.placer import stuck

logger = logging.getLogger(__name__)

PodJson = Mapping[str, Any]

AFTER_SECONDS: Final = 60.0


class Replacing:
    """`after_seconds`: for how long the scheduler may try first."""

    def __init__(
        self,
        api: client.Client,
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
        self._sightings = stuck.Sightings(after_seconds)
        self._pace = stuck.Pace()

    async def look(self, pods: Iterable[PodJson]) -> float | None:
        """Do what is due; return in how many seconds to look again, None if nobody is stuck."""
        now = self._clock()
        found = {pod.uid(one): one for one in pods if stuck.why(one) is not None}
        self._metrics.stuck(len(found))
        overdue, next_at = self._sightings.overdue(found, now=now)
        waits = [] if next_at is None else [next_at - now]
        for one in overdue:
            words, owner = stuck.why(one) or "", stuck.owner(one)
            self._recorder.record(one, contract.EVENT_STUCK, stuck.explain(one, words, owner), type="Warning")
            if owner is None:
                continue
            wait_seconds = self._pace.wait_seconds(owner, now=now)
            if wait_seconds > 0:
                waits.append(wait_seconds)
            elif await self._evict(one, owner):
                self._pace.evicted(owner, now=now)
        return min(waits, default=None)

    async def _evict(self, one: PodJson, owner: stuck.Owner) -> bool:
        """Whether it went, or is going to."""
        namespace, name = pod.namespaced_name(one)
        metadata = one["metadata"]
        # Of this very state of it: a pod that was bound meanwhile has another version, and stays.
        known = {"uid": metadata.get("uid"), "resourceVersion": metadata.get("resourceVersion")}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": known},
        }
        try:
            async with asyncio.timeout(10.0):
                await self._api.create(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
        except (cluster_errors.ClusterError, TimeoutError) as error:
            logger.info("Could not evict a stuck pod", extra={"pod": f"{namespace}/{name}", "err": str(error)})
            return False
        self._metrics.replaced()
        logger.warning("Evicted a stuck pod", extra={"pod": f"{namespace}/{name}", "owner": owner.name})
        note = f"evicted, because it could not be bound where it was placed: {owner.kind} {owner.name} makes it anew"
        self._recorder.record(one, contract.EVENT_REPLACED, note, action="Evict")
        return True
