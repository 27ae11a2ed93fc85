"""Puts the labels on the Node: only those that differ, and only ours.

An annotation of the Node has the keys that we have written. A label that is there without being in it is somebody
else's (NVIDIA's own feature discovery, an admin's hand): it is left alone, whatever it says, as two writers of one
label would never come to an end. One of ours that is no longer true is taken away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from deviceplugin.labels.words import Labels
from deviceplugin.state.node_state import ModesInForce
from deviceplugin.state.offer import Observable
from gpushare import contract
from gpushare.cluster import api_client, repeating

logger = logging.getLogger(__name__)


def patch(metadata: Mapping[str, Any], wanted: Labels) -> dict[str, Any] | None:
    """The merge patch that makes a Node with this metadata have our labels; None where it has them. Pure."""
    present = metadata.get("labels") or {}
    noted = str((metadata.get("annotations") or {}).get(contract.OWN_LABELS, ""))
    own = {key for key in noted.split(",") if key}
    ours = {key: value for key, value in wanted.items() if key in own or key not in present}
    changed: dict[str, str | None] = {key: value for key, value in ours.items() if present.get(key) != value}
    changed |= dict.fromkeys(sorted(own & present.keys() - ours.keys()))
    note = ",".join(sorted(ours))
    if not changed and note == noted:
        return None
    return {"metadata": {"labels": changed, "annotations": {contract.OWN_LABELS: note or None}}}


class LabelWriter:
    """Writes whenever `wake` was set, or other modes are in force, and something differs.

    metadata: of the Node as last seen, None while it is unknown; wanted: the labels that it is to have, None while
    they cannot be told.
    """

    def __init__(
        self,
        api: api_client.ApiClient,
        *,
        node_name: str,
        wake: asyncio.Event,
        in_force: Observable[ModesInForce],
        metadata: Callable[[], Mapping[str, Any] | None],
        wanted: Callable[[], Awaitable[Labels | None]],
    ) -> None:
        self._api = api
        self._path = f"/api/v1/nodes/{node_name}"
        self._metadata = metadata
        self._wanted = wanted
        self._wake = wake
        self._in_force = in_force

    async def run(self) -> None:
        """Write until cancelled."""
        self._in_force.wake(self._wake)
        await repeating.run_on_wakeup(self._wake, self.step, trouble="Could not label the node", logger=logger)

    async def step(self) -> None:
        """Write what differs. Raises ClusterError."""
        wanted, metadata = await self._wanted(), self._metadata()
        if wanted is None or metadata is None:
            return
        body = patch(metadata, wanted)
        if body is None:
            return
        await self._api.patch(self._path, body)
        logger.info("Labelled the node", extra={"labels": body["metadata"]["labels"]})
