"""The cluster as `applying` sees it: what it wants, what its ledger says, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping

from deviceplugin.gpunode_status import GpuNodeStatus
from deviceplugin.live.cluster_config import Configuration
from gpushare.cluster import events
from gpushare.gpunode import GpuNode


class ClusterView:
    """`surroundings.Cluster`, of an API server."""

    def __init__(self, configuration: Configuration, status: GpuNodeStatus, recorder: events.Recorder) -> None:
        self._configuration = configuration
        self._status = status
        self._recorder = recorder

    @property
    def is_known(self) -> bool:
        """Whether label and ConfigMap were read once."""
        return self._configuration.is_known

    @property
    def label(self) -> str | None:
        """Which entry this node asks for."""
        return self._configuration.label

    @property
    def entries(self) -> Mapping[str, str]:
        """The entries of the ConfigMap."""
        return self._configuration.entries

    @property
    def node(self) -> GpuNode | None:
        """The GPUNode as last seen."""
        return self._status.node

    async def settled(self) -> GpuNode:
        """The GPUNode, no older than what was told last."""
        return await self._status.settled()

    def tell(self, reason: str, note: str, *, warning: bool = False) -> None:
        """An Event about the GPUNode."""
        self.tell_of(self._status.reference, reason, note, warning=warning)

    def tell_of(self, regarding: Mapping[str, str], reason: str, note: str, *, warning: bool = False) -> None:
        """An Event about any object."""
        self._recorder.record(regarding, reason, note, type="Warning" if warning else "Normal", action="Configure")


def pod_reference(namespace: str, name: str, uid: str = "") -> dict[str, str]:
    """What an Event about a pod names."""
    reference = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name}
    return reference | ({"uid": uid} if uid else {})
