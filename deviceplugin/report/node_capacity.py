"""Keeps the node's capacity of `gpushare.io/gpu-memory` at the bytes that shares can be given.

The device plugin API counts devices, and a device per byte is out of the question; so this one resource is written into
the node's status, from where the kubelet takes it over into allocatable. A kubelet that makes its node again sets it to
nothing; the watch of the node tells of it. The API server is never asked for the node: thousands of agents that have
nothing to write cost it nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from deviceplugin.state.allocatable import Allocatable
from deviceplugin.state.offer import Observable
from gpushare import contract, errors, quantity
from gpushare.cluster import api_client, api_errors

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0  # after a write that failed


class NodeCapacity:
    """The writer of one number in the node's status.

    allocatable: what it should be; written: what it is, as the node was last seen, and None while no node was.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        *,
        node_name: str,
        allocatable: Observable[Allocatable],
        written: Callable[[], str | None],
    ) -> None:
        self._api = api
        self._path = f"/api/v1/nodes/{node_name}"
        self._allocatable = allocatable
        self._written = written
        self._wake = asyncio.Event()

    def look(self) -> None:
        """The node or its GPUs may have changed: compare again."""
        self._wake.set()

    async def run(self) -> None:
        """Compare and write until cancelled."""
        self._allocatable.wake(self._wake)
        while True:
            self._wake.clear()
            pause_seconds = None
            try:
                await self.step()
            except api_errors.ClusterError as error:
                logger.warning("Could not write the node's capacity", extra={"err": str(error)})
                pause_seconds = AGAIN_SECONDS
            await self._pause(pause_seconds)

    async def step(self) -> None:
        """Write the capacity if it is another one."""
        there, wanted = self._written(), self._allocatable.value.get(contract.RESOURCE_MEMORY)
        if there is None or wanted is None or _bytes(there) == wanted:
            return
        body = {"status": {"capacity": {contract.RESOURCE_MEMORY: str(wanted)}}}
        await self._api.patch(f"{self._path}/status", body)
        logger.info("Wrote the node's capacity", extra={"resource": contract.RESOURCE_MEMORY, "bytes": wanted})

    async def _pause(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()


def _bytes(text: str) -> int | None:
    """None for what is not an amount, as the empty text of a node without it."""
    try:
        return quantity.parse_bytes(text)
    except errors.QuantityError:
        return None
