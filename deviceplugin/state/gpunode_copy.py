"""A live copy of this node's GPUNode, from the watch and from the agent's own writes; Events about it and its pods."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpushare import codec, contract, pod
from gpushare.cluster import api_client, api_errors, events, informer, object_store
from gpushare.gpunode import GpuNode
from gpushare.pod import PodJson


class GpuNodeCopy:
    """The copy. document: the newest known GPUNode, None if there is none. wake: set when it may have changed."""

    def __init__(self, api: api_client.ApiClient, *, node_name: str, wake: asyncio.Event) -> None:
        self._api = api
        self.name = node_name
        self._wake = wake
        self.document: dict[str, Any] | None = None
        self.informer = informer.Informer(api, contract.GPUNODE_PATH, field_selector=f"metadata.name={node_name}")
        self.informer.subscribe(self._changed)

    def now(self) -> GpuNode | None:
        return codec.read(self.document) if self.document is not None else None

    @property
    def reference(self) -> dict[str, str]:
        uid = (self.document or {}).get("metadata", {}).get("uid", "")
        named = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "name": self.name, "uid": uid}
        return {key: value for key, value in named.items() if value}

    async def refreshed(self) -> GpuNode | None:
        """Read the GPUNode from the API server; return None if there is none. Raises ClusterError."""
        try:
            return codec.read(await self._api.get(f"{contract.GPUNODE_PATH}/{self.name}"))
        except api_errors.NotFound:
            return None

    def update(self, document: dict[str, Any], *, instead_of: dict[str, Any] | None) -> None:
        """Take over an answer of the API server, unless the copy is newer; `instead_of`: the copy at the request."""
        # The response to our own write and the watch can overtake each other, so versions decide. If the copy has not
        # changed since the request, the answer is newer in spite of an older version: etcd may have been restored.
        if instead_of is self.document or not _is_older(document, self.document):
            self.document = document

    def _changed(self, change: object_store.Delta) -> None:
        if change.new is None:
            self.document = None
        else:
            self.update(change.new, instead_of=self.document if self.informer.went_back else None)
        self._wake.set()


def _is_older(document: dict[str, Any], other: dict[str, Any] | None) -> bool:
    """Whether it is an earlier version of the same object; resource versions are growing numbers."""
    try:
        old, new = document["metadata"], (other or {})["metadata"]
        return old.get("uid") == new.get("uid") and int(old["resourceVersion"]) < int(new["resourceVersion"])
    except (KeyError, ValueError):
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEvents:
    """Records Events. pods: returns the pods of the node, to look up UIDs."""

    recorder: events.Recorder
    gpunode: GpuNodeCopy
    _: dataclasses.KW_ONLY
    pods: Callable[[], Iterable[PodJson]]

    def record(self, reason: str, note: str, *, warning: bool = False) -> None:
        self._record(self.gpunode.reference, reason, note, warning=warning)

    def record_for_pod(self, namespace: str, name: str, reason: str, note: str, *, warning: bool = False) -> None:
        reference = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name}
        uids = (pod.uid(manifest) for manifest in self.pods() if pod.namespaced_name(manifest) == (namespace, name))
        uid = next(uids, "")
        self._record(reference | ({"uid": uid} if uid else {}), reason, note, warning=warning)

    def warn(self, reason: str, note: str, of: tuple[str, str] | None) -> None:
        """Record a warning about the GPUNode and, if `of` gives a namespace and name, about that pod."""
        self.record(reason, note, warning=True)
        if of is not None:
            self.record_for_pod(*of, reason, note, warning=True)

    def _record(self, regarding: Mapping[str, str], reason: str, note: str, *, warning: bool) -> None:
        self.recorder.record(regarding, reason, note, type="Warning" if warning else "Normal", action="Configure")
