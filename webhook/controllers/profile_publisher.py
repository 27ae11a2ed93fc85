"""ProfilePublisher: tells the plugin by what the webhook chooses; the replica that leads writes it into a ConfigMap."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from gpushare import contract
from gpushare.cluster import api_client, api_errors
from gpushare.placement_profile import PlacementProfile

logger = logging.getLogger(__name__)

PATH: Final = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/configmaps/{contract.PLACEMENT_CONFIG_MAP}"
AGAIN_SECONDS: Final = 300.0  # somebody may have edited it
PAUSE_SECONDS: Final = 10.0  # a lesson comes every some tens of pods: nobody plans by the last of them


class ProfilePublisher:
    """`profile`: the one in force; `leads`: whether we are the placer."""

    def __init__(
        self,
        api: api_client.ApiClient,
        *,
        profile: Callable[[], PlacementProfile],
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._profile = profile
        self._leads = leads
        self._clock = clock
        self._written: PlacementProfile | None = None  # since we lead
        self._written_at = 0.0
        self._problem = ""  # that was logged last

    async def run(self) -> None:
        """Write what has changed, now and then, until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(PAUSE_SECONDS)

    async def step(self) -> None:
        """Write it if it has changed since we lead, or was written long ago.

        Never raises ClusterError: nobody is placed by it here.
        """
        if not self._leads():
            self._written = None
            return
        profile = self._profile()
        if profile == self._written and self._clock() - self._written_at < AGAIN_SECONDS:
            return
        try:
            await self._api.patch(PATH, {"data": profile.data()})
        except api_errors.ClusterError as error:
            if str(error) != self._problem:  # it is tried again and again
                logger.warning(
                    "Could not tell the plugin by what pods are placed, so it goes by what was written last: "
                    "apply config/base of this release, which has the ConfigMap and the right to write it",
                    extra={"configmap": contract.PLACEMENT_CONFIG_MAP, "err": str(error)},
                )
            self._problem = str(error)
        else:
            self._written, self._written_at, self._problem = profile, self._clock(), ""
