"""Writes the Node's capacity of `gpushare.io/gpu-memory`: the bytes that shares can get.

The device plugin API counts devices, and one device per byte is impossible. So this resource is written to the Node's
status, and the kubelet copies it to allocatable. A kubelet that recreates its Node drops it, which the watch shows.
The Node is never read from the API server, so agents without changes do not load it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from deviceplugin.state.advertisement import Allocatable
from deviceplugin.state.node_state import Observable
from gpushare import contract, errors, quantity
from gpushare.cluster import api_client, api_errors

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0  # after a write that failed


class NodeCapacity:
    """The writer. allocatable: the wanted amounts; written: returns the Node's present capacity, None if unknown."""

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

    def check(self) -> None:
        """Compare again, as the Node may have changed."""
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
        """Write the capacity if it differs. Raises ClusterError."""
        present, wanted = self._written(), self._allocatable.value.get(contract.RESOURCE_MEMORY)
        if present is None or wanted is None or _bytes(present) == wanted:
            return
        body = {"status": {"capacity": {contract.RESOURCE_MEMORY: str(wanted)}}}
        await self._api.patch(f"{self._path}/status", body)
        logger.info("Wrote the node's capacity", extra={"resource": contract.RESOURCE_MEMORY, "bytes": wanted})

    async def _pause(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()


def _bytes(text: str) -> int | None:
    """Parse a quantity; return None for any other text, such as the empty one of a Node without capacity."""
    try:
        return quantity.parse_bytes(text)
    except errors.QuantityError:
        return None
