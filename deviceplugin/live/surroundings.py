"""What the loop that applies configurations is connected to: the cluster, the GPUs, and those who follow it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from deviceplugin.allocatable import Allocatable
from deviceplugin.gpunode_status import Statement
from deviceplugin.kubelet.advertisement import Advertisement
from deviceplugin.live import choosing
from deviceplugin.offer import Observable, Offer
from gpushare.gpunode import GpuNode
from gpushare.modes.hardware_gpu import HardwareGpu


class ClusterLink(choosing.ConfigSource, Protocol):
    """What the cluster wants, what it knows, and what it is told."""

    @property
    def node(self) -> GpuNode | None:
        """The GPUNode as last seen."""

    async def settled(self) -> GpuNode:
        """The GPUNode, no older than what was told last. Raises ClusterError."""

    def tell(self, reason: str, note: str, *, warning: bool = False) -> None:
        """An Event about this node's GPUs."""


@dataclasses.dataclass(slots=True)
class Hardware:
    """The GPUs as the driver has them, in `seen`; the same with their MIG devices, and those of them that are ill."""

    seen: Offer
    cards: Callable[[], tuple[HardwareGpu, ...]]
    ill: Callable[[], frozenset[str]]


@dataclasses.dataclass(slots=True)
class Published:
    """What others follow: the GPUs with their modes, what they can give, the devices by resource, and sentences."""

    offer: Offer
    allocatable: Observable[Allocatable]
    advertised: Observable[Advertisement]
    statement: Observable[Statement]
