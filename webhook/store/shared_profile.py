"""The placement profile that all replicas and the plugin use: the one in the ConfigMap, which the leader renews.

Prices depend on the mix. If each replica used the mix that it has counted itself, two replicas, or one before and after
a restart, would choose different GPUs for the same pod. So only the leader learns, and it writes what it has learned
before it uses it; all others use what is stored. A replica that finds no ConfigMap, or cannot read it, uses its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gpushare import contract, errors
from gpushare.cluster import api_client, api_errors, informer, retrying
from gpushare.cluster import object_store as objects
from gpushare.mix import Mix
from gpushare.placement.worth import Worth
from gpushare.placement_profile import PlacementProfile
from webhook.store.chooser import Chooser, WorkloadMix

logger = logging.getLogger(__name__)

COLLECTION: Final = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/configmaps"
RETRY_SECONDS: Final = 10.0
READ_SECONDS: Final = 30.0  # how long to wait for the first read, once all else has been read


class SharedProfile:
    """The profile in use. workload: counts placed pods, and sets `woken` when a lesson is due.

    policy, preemption: of this process. leads: whether this replica renews the ConfigMap. synced: set when something
    else has been read, so that a rejected list is final.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        chooser: Chooser,
        workload: WorkloadMix,
        *,
        woken: asyncio.Event,
        policy: str,
        preemption: bool,
        leads: Callable[[], bool],
        synced: asyncio.Event,
    ) -> None:
        self._api = api
        self._chooser = chooser
        self._policy = policy
        self._preemption = preemption
        self._leads = leads
        self._workload = workload
        self._woken = woken
        named = f"metadata.name={contract.PLACEMENT_CONFIG_MAP}"
        self._informer = informer.Informer(api, COLLECTION, field_selector=named, believe_refusals=synced)
        self._informer.subscribe(self._changed)
        self._stored: PlacementProfile | None = None  # None: there is none, or it is invalid
        self._unwritten: PlacementProfile | None = None  # learned here, or lost there
        self._used = Mix()  # the mix of `_stored` that the chooser has
        self._is_ready = asyncio.Event()
        self._problem = ""  # the problem that was logged last

    async def ready(self) -> None:
        """Wait for the ConfigMap and use its mix; the chooser must know the nodes. Called once."""
        await retrying.wait(self._informer.answered, READ_SECONDS)
        await self._use_stored()
        self._is_ready.set()

    def missing(self) -> str | None:
        """Return why the ConfigMap has not been read yet, or None if it has, or need not be."""
        if self._is_ready.is_set() or self._informer.answered.is_set():
            return None
        return f"the placement profile has not been read yet: {self._informer.problem or 'no answer'}"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run())
            await self._is_ready.wait()
            while True:
                await self.step()
                await self._woken.wait()
                self._woken.clear()

    async def step(self) -> None:
        """Learn, if that is due and up to this replica, and use what is stored."""
        studied: Worth | None = None
        if self._informer.objects and not self._leads():
            self._unwritten = None
        elif self._workload.is_due:
            studied = await self._chooser.study(self._workload.snapshot())
            self._unwritten = self._own(studied.mix)
        elif (
            self._leads()
            and self._informer.answered.is_set()  # otherwise there may be a mix that would be lost
            and (self._stored is None or self._stored != self._own(self._stored.mix))
        ):
            self._unwritten = self._unwritten or self._own(self._chooser.mix)
        before = self._stored
        if self._unwritten is not None and await self._write(self._unwritten):
            if self._stored is before:  # otherwise one was read during the write, and it may be newer
                self._stored = PlacementProfile.read(self._unwritten.data())
            self._unwritten = None
        if await self._use_stored(studied) and studied is None:
            self._workload.snapshot()  # another replica has learned, so the next lesson is due later

    def _own(self, mix: Mix) -> PlacementProfile:
        return PlacementProfile(self._policy, mix, self._chooser.isolation, self._preemption)

    async def _use_stored(self, studied: Worth | None = None) -> bool:
        """Use the stored mix; return whether it is a new one. studied: the tables of a mix, if this may be it."""
        if self._stored is None or self._stored.mix == self._used:
            return False
        mix = self._stored.mix
        if studied is None or studied.mix != mix:  # a mix that is too long for the ConfigMap is stored in part
            studied = await self._chooser.study(mix)
        self._chooser.use(studied)
        self._used = mix
        logger.info("Placement uses the cluster's mix of requests", extra={"pods": mix.pods})
        return True

    async def _write(self, profile: PlacementProfile) -> bool:
        """Write the profile, if this replica leads; return whether it may be used. Try again later otherwise."""
        if not self._leads():
            return True
        try:
            await self._api.patch(f"{COLLECTION}/{contract.PLACEMENT_CONFIG_MAP}", {"data": profile.data()})
        except api_errors.ClusterError as error:
            if str(error) != self._problem:  # every retry fails for the same reason
                logger.warning(
                    "Could not publish the placement profile, so replicas and the plugin use the last one: "
                    "apply config/base of this release, which has the ConfigMap and the permissions for it",
                    extra={"configmap": contract.PLACEMENT_CONFIG_MAP, "err": str(error)},
                )
            self._problem = str(error)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._woken.set)
            return not self._informer.objects
        self._problem = ""
        return True

    def _changed(self, change: objects.Delta) -> None:
        data = (change.new or {}).get("data") or {}
        try:
            self._stored = PlacementProfile.read(data) if data else None
        except errors.CodecError as error:
            self._stored = None
            logger.warning("The placement profile is invalid, so the leader writes it again", extra={"err": str(error)})
        self._woken.set()
