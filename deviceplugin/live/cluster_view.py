"""The cluster as the reconciler of modes sees it: what it wants, what its ledger says, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping

from deviceplugin.live.cluster_config import Configuration
from deviceplugin.report.announcing import NodeEvents
from deviceplugin.report.gpunode_copy import GpuNodeCopy
from deviceplugin.report.gpunode_status import GpuNodeStatus
from gpushare.gpunode import GpuNode


class ClusterView:
    """Of an API server. `tell` writes an Event about the GPUNode."""

    def __init__(
        self, configuration: Configuration, gpunode: GpuNodeCopy, status: GpuNodeStatus, told: NodeEvents
    ) -> None:
        self._configuration = configuration
        self._gpunode = gpunode
        self._status = status
        self.tell = told.tell

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
        return self._gpunode.now()

    async def settled(self) -> GpuNode:
        """The GPUNode, no older than what was told last."""
        return await self._status.settled()
