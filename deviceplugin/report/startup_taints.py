"""Removes the start-up taint from the agent's own Node once its GPUs are offered and reported.

An autoscaler starts a node with the taint. Without it, pods could come before the agent: the autoscaler would see a
ready node without GPUs and start another one. Only the taints of the contract are removed, and only as they were read.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpushare import contract
from gpushare.cluster import api_client, api_errors

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 2.0  # while a taint waits for the GPUNode, or the API server rejects its removal

Taints = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class StartupTaints:
    """taints: of the Node as it is known, None while it is not. is_ready: whether GPUNode and resources are there.

    wake: set when the Node has changed.
    """

    api: api_client.ApiClient
    _: dataclasses.KW_ONLY
    node_name: str
    taints: Callable[[], Taints | None]
    is_ready: Callable[[], bool]
    wake: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            self.wake.clear()
            pause_seconds = None
            body = patch(self.taints() or ())
            if body is not None:
                pause_seconds = AGAIN_SECONDS
                if self.is_ready():
                    await self._write(body)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self.wake.wait()

    async def _write(self, body: Sequence[Mapping[str, Any]]) -> None:
        try:
            await self.api.patch(f"/api/v1/nodes/{self.node_name}", body, api_client.JSON_PATCH)
        except api_errors.ClusterError as error:
            logger.warning("Could not remove the node's start-up taint", extra={"err": str(error)})
        else:
            logger.info("Removed the node's start-up taint", extra={"node": self.node_name})


def patch(taints: Taints) -> list[dict[str, Any]] | None:
    """Return the JSON Patch that removes the start-up taints if the others are unchanged; None if there is none."""
    rest = [taint for taint in taints if taint.get("key") not in contract.STARTUP_TAINTS]
    if len(rest) == len(taints):
        return None
    return [
        {"op": "test", "path": "/spec/taints", "value": list(taints)},
        {"op": "replace", "path": "/spec/taints", "value": rest},
    ]
