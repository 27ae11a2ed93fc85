"""A live copy of this node's GPUNode: by the watch, and by what the API server answers to what is written."""

from __future__ import annotations

import asyncio
from typing import Any

from gpushare import codec, contract
from gpushare.cluster import api_client, api_errors, informer, object_store
from gpushare.gpunode import GpuNode


class GpuNodeCopy:
    """`document` is the newest one known, None while there is none; `wake` is set whenever it may be another one."""

    def __init__(self, api: api_client.ApiClient, *, node_name: str, wake: asyncio.Event) -> None:
        self._api = api
        self.name = node_name
        self._wake = wake
        self.document: dict[str, Any] | None = None
        self.informer = informer.Informer(api, contract.GPUNODE_PATH, field_selector=f"metadata.name={node_name}")
        self.informer.subscribe(self._changed)

    def now(self) -> GpuNode | None:
        """The GPUNode as last seen; None while there is none."""
        return codec.read(self.document) if self.document is not None else None

    @property
    def reference(self) -> dict[str, str]:
        """What an Event about the GPUNode names."""
        uid = (self.document or {}).get("metadata", {}).get("uid", "")
        named = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "name": self.name, "uid": uid}
        return {key: value for key, value in named.items() if value}

    async def refreshed(self) -> GpuNode | None:
        """The GPUNode as it is now, asked of the API server."""
        try:
            return codec.read(await self._api.get(f"{contract.GPUNODE_PATH}/{self.name}"))
        except api_errors.NotFound:
            return None

    def take(self, document: dict[str, Any], *, instead_of: dict[str, Any] | None) -> None:
        """The API server says so; `instead_of`: what was known when it was asked."""
        # What we have just written ourselves is newer than what was on its way to us then; or the other way round. What
        # was asked for when we had what we have is newer whatever its version: etcd may have been restored.
        if instead_of is self.document or not _is_older(document, self.document):
            self.document = document

    def _changed(self, change: object_store.Delta) -> None:
        if change.new is None:
            self.document = None
        else:
            self.take(change.new, instead_of=self.document if self.informer.went_back else None)
        self._wake.set()


def _is_older(document: dict[str, Any], other: dict[str, Any] | None) -> bool:
    """Whether it is an earlier state of the same object than `other`; resource versions are numbers that grow."""
    if other is None or document["metadata"].get("uid") != other["metadata"].get("uid"):
        return False
    try:
        return int(document["metadata"]["resourceVersion"]) < int(other["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        return False
