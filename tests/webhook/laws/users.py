"""The API server's handling of users' requests: reviews by a replica, and events between them and the store."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch

from gpushare import contract, pod
from gpushare.cluster import api_errors
from gpushare.request import is_result_key
from tests.webhook.laws import truth
from tests.webhook.laws.replica import Replica
from tests.webhook.laws.simulated_api import PODS, SimulatedApi
from tests.webhook.laws.virtual_loop import VirtualLoop
from webhook import review

WEBHOOK_SECONDS = 10.0  # timeoutSeconds of the registration
REQUEST_SECONDS = 50.0  # the API server ends what takes longer, 60 s by default: less than a reservation lasts


@dataclasses.dataclass(slots=True, eq=False)
class Point:
    """A point in a user's request where the API server waits until the schedule continues it or makes it fail."""

    label: str
    may_fail: bool
    waiter: asyncio.Future[bool]
    held_until: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A pod that a user creates. changed: another webhook changes it after ours, which is then reinvoked. copied: it
    has the results of an existing pod.
    """

    manifest: dict[str, Any]
    dry_run: bool = False
    changed: bool = False
    copied: bool = False


class Users:
    """Users whose requests wait at `points` until they may go on; `planned`: IDs that dry runs have returned.

    happened: the log so far, which determines the replica that is asked.
    """

    def __init__(
        self, api: SimulatedApi, replicas: Mapping[str, Replica], loop: VirtualLoop, happened: Sequence[str]
    ) -> None:
        self.points: list[Point] = []
        self.planned: set[str] = set()
        self._happened = happened
        self._api = api
        self._replicas = replicas
        self._loop = loop

    async def create(self, ask: Ask) -> None:
        manifest = copy.deepcopy(ask.manifest)
        deadline = self._loop.now + REQUEST_SECONDS
        name = manifest["metadata"].get("name") or manifest["metadata"]["generateName"]
        if ask.copied and await self._point(f"{name} is copied", may_fail=False):
            self._copy_another(manifest)
        for turn in range(2 if ask.changed else 1):
            answer = await self._review(manifest, ask, f"{name}, turn {turn + 1}")
            if answer is None or not answer.allowed:
                return
            manifest = jsonpatch.apply_patch(manifest, list(answer.patch))
            if ask.dry_run:
                self.planned.add(pod.annotations_of(manifest).get(contract.ALLOCATION, ""))
                return
        # A quota, another webhook or a name conflict rejects the pod after the webhook's answer.
        if not await self._point(f"{name} is stored", may_fail=True) or self._loop.now > deadline:
            return
        moment = datetime.datetime.fromtimestamp(self._loop.now, tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            self._api.create(PODS, manifest, creationTimestamp=moment)
        except api_errors.AlreadyExists:
            return

    def _copy_another(self, manifest: dict[str, Any]) -> None:
        for other in truth.living(self._api):
            if pod.annotations_of(other).keys() >= {contract.ALLOCATION}:
                results = {key: value for key, value in pod.annotations_of(other).items() if is_result_key(key)}
                manifest["metadata"]["annotations"].update(results)
                return

    async def _review(self, manifest: dict[str, Any], ask: Ask, what: str) -> review.ReviewResponse | None:
        if not await self._point(f"review of {what} arrives", may_fail=True):
            return None
        alive = [replica for replica in self._replicas.values() if replica.alive and replica.store.missing() is None]
        if not alive:
            return None
        chosen = alive[len(self._happened) % len(alive)]
        request: review.AdmissionRequest = {
            "uid": what,
            "operation": "CREATE",
            "namespace": manifest["metadata"]["namespace"],
            "dryRun": ask.dry_run,
            "object": json.loads(json.dumps(manifest)),
        }
        try:
            async with asyncio.timeout(WEBHOOK_SECONDS):
                answer = await asyncio.shield(chosen.ask(request))
                arrived = await self._point(
                    f"{chosen.name}'s answer to {what} arrives: {answer.outcome}", may_fail=True
                )
        except (TimeoutError, asyncio.CancelledError):
            return None
        return answer if arrived and chosen.alive else None

    async def _point(self, label: str, *, may_fail: bool) -> bool:
        point = Point(label, may_fail, self._loop.create_future())
        self.points.append(point)
        try:
            return await point.waiter
        finally:
            if point in self.points:
                self.points.remove(point)

    def let_pass(self, point: Point, well: bool) -> None:
        self.points.remove(point)
        if not point.waiter.done():
            point.waiter.set_result(well)
