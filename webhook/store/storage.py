"""Storage: claims, volumes and what nodes can attach of them, as the API server tells it.

PersistentVolumes have to be read. On the rest depends only what a node can attach, and which claims do not exist: where
it may not be read, or is unknown to the API server, that is not heeded, and the log says so. What is refused before
PersistentVolumes were told is asked again first: an API server that has just started refuses everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from gpushare.cluster import api_client, informer
from gpushare.cluster import object_store as objects
from gpushare.nodefilters import volumes

logger = logging.getLogger(__name__)

SURE_SECONDS: Final = 60.0  # after so long without a word of claims nobody is told that one does not exist


Changed = Callable[[objects.Key, volumes.StorageObject | None, volumes.StorageObject | None], None]


class Storage:
    """`changed(key, before, after)` is called with what is known of an object; None: it was not there, or is gone."""

    def __init__(self, api: api_client.ApiClient, changed: Changed) -> None:
        self._changed = changed
        required = informer.Informer(api, volumes.PATHS[volumes.VOLUME], transform=_kept(volumes.VOLUME))
        self._copies = {volumes.VOLUME: required} | {
            kind: informer.Informer(api, path, transform=_kept(kind), believe_refusals=required.synced)
            for kind, path in volumes.PATHS.items()
            if kind != volumes.VOLUME
        }
        for copy in self._copies.values():
            copy.subscribe(self._object_changed)

    def knows_claims(self) -> bool:
        """Whether a claim of which nothing was told does not exist."""
        claims = self._copies[volumes.CLAIM]
        return claims.synced.is_set() and claims.age_seconds < SURE_SECONDS

    @property
    def volumes(self) -> informer.Informer:
        """The copy that there has to be."""
        return self._copies[volumes.VOLUME]

    async def run(self) -> None:
        """Keep the scheduler cache true until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for copy in self._copies.values():
                tasks.create_task(copy.run())
            tasks.create_task(self._look())

    async def synced(self) -> None:
        """Wait until everything has been read once that may be read."""
        for copy in self._copies.values():
            await copy.answered.wait()

    def missing(self) -> str | None:
        """What has not been read yet, as a sentence; None when nothing is missing."""
        for kind, copy in self._copies.items():
            if not copy.answered.is_set():
                return f"the {kind}{'es' if kind.endswith('s') else 's'} have not been read yet"
        return None

    async def _look(self) -> None:
        """Say what may not be read."""
        for kind, copy in self._copies.items():
            await copy.answered.wait()
            if not copy.synced.is_set():
                logger.warning(
                    "How many volumes a node can attach is not heeded, as it cannot be read in full: "
                    "apply the ClusterRole gpushare-webhook of this release",
                    extra={"kind": kind, "err": copy.problem},
                )

    def _object_changed(self, change: objects.Delta) -> None:
        before, after = (item["found"] if item is not None else None for item in (change.old, change.new))
        if before != after:
            self._changed(change.key, before, after)


def _kept(kind: str) -> objects.Transform:
    """What is kept of an object of this kind."""

    def kept(item: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": objects.identity_of(item), "found": volumes.read({**item, "kind": kind})}

    return kept
