"""Keeps the node's capacity of `gpushare.io/gpu-memory` at the bytes that shares can be given.

The device plugin API counts devices, and a device per byte is out of the question; so this one resource is written into
the node's status, from where the kubelet takes it over into allocatable. A kubelet that makes its node anew sets it to
nothing; that is looked for when the kubelet was away, and now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from deviceplugin.offer import Followed, Offer
from deviceplugin.slack import Slack
from gpushare import contract, errors, quantity
from gpushare.cluster import client
from gpushare.cluster import errors as cluster_errors
from gpushare.gpu import Gpu, Mode

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
SOON_SECONDS: Final = 5.0  # after the kubelet came back, or something failed


def shareable_bytes(gpus: Iterable[Gpu], more: Mapping[str, int]) -> int:
    """The memory of all fractional GPUs that are healthy, and what there is `more` of it, by UUID."""
    usable = [card for card in gpus if card.mode is Mode.FRACTIONAL and card.healthy]
    return sum(card.memory_bytes + more.get(card.uuid, 0) for card in usable)


class NodeCapacity:
    """The writer of one number in the node's status."""

    def __init__(self, api: client.Client, *, node_name: str, offer: Offer, slack: Followed[Slack]) -> None:
        self._api = api
        self._path = f"/api/v1/nodes/{node_name}"
        self._offer = offer
        self._slack = slack
        self._wake = asyncio.Event()

    def kubelet_returned(self) -> None:
        """Look again soon: the kubelet may just have set it to nothing."""
        self._wake.set()

    async def run(self) -> None:
        """Look and write until cancelled."""
        followers = [asyncio.create_task(self._follow(one)) for one in (self._offer, self._slack)]
        try:
            while True:
                pause_seconds = LOOK_SECONDS
                try:
                    await self.step()
                except cluster_errors.ClusterError as error:
                    logger.warning("Could not write the node's capacity", extra={"err": str(error)})
                    pause_seconds = SOON_SECONDS
                await self._pause(pause_seconds)
        finally:
            for one in followers:
                one.cancel()

    async def step(self) -> None:
        """Write the capacity if it is another one."""
        wanted = shareable_bytes(self._offer.gpus, self._slack.value.get(contract.RESOURCE_MEMORY, {}))
        node = await self._api.get(self._path)
        capacity = (node.get("status") or {}).get("capacity") or {}
        if _bytes(capacity.get(contract.RESOURCE_MEMORY)) == wanted:
            return
        body = {"status": {"capacity": {contract.RESOURCE_MEMORY: str(wanted)}}}
        await self._api.patch(f"{self._path}/status", body)
        logger.info("Wrote the node's capacity", extra={"resource": contract.RESOURCE_MEMORY, "bytes": wanted})

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _follow(self, followed: Followed[Any]) -> None:
        async for _ in followed.follow():
            self._wake.set()


def _bytes(text: str | None) -> int | None:
    try:
        return None if text is None else quantity.parse_bytes(text)
    except errors.QuantityError:
        return None
