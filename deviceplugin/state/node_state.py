"""The facts about the node's GPUs, as observable values that the agent's components publish and follow."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

from deviceplugin.state.advertisement import Advertisement
from deviceplugin.state.allocatable import Allocatable
from deviceplugin.state.offer import Observable, Offer, Unreadable
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import Condition
from gpushare.modes.assignment import Assignment, DeviceOffer


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigStatus:
    """The name of the configuration in force, and the GPUNode's conditions about it."""

    config: str = ""
    conditions: tuple[Condition, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ModesInForce:
    """The input of Allocate.

    offered: the devices by resource; settings: how containers get them; closed: UUIDs of the GPUs that accept no new
    pods; assignments: by UUID, the assignment in force, None while a GPU is being set up.
    """

    offered: DeviceOffer = dataclasses.field(default_factory=dict)
    settings: NodeSettings = dataclasses.field(default_factory=NodeSettings)
    closed: frozenset[str] = frozenset()
    assignments: Mapping[str, Assignment | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeState:
    """The node's observable values, by the component that publishes them.

    - The observation of the driver: seen, the GPUs; unread, GPUs that could not be read.
    - The mode reconciler: gpus, the GPUs with their modes; allocatable, how much they can give; advertised, the devices
      by resource; in_force; config_status; and the event `published`, set at its first publication.
    - The device plugins: registered, the resources whose plugin the kubelet knows now; hung_up, why the kubelet does
      not read the device lists of the others, or "".
    """

    seen: Offer = dataclasses.field(default_factory=Offer)
    unread: Observable[tuple[Unreadable, ...]] = dataclasses.field(default_factory=lambda: Observable(()))
    gpus: Offer = dataclasses.field(default_factory=Offer)
    allocatable: Observable[Allocatable] = dataclasses.field(default_factory=lambda: Observable({}))
    advertised: Observable[Advertisement] = dataclasses.field(default_factory=lambda: Observable({}))
    config_status: Observable[ConfigStatus] = dataclasses.field(default_factory=lambda: Observable(ConfigStatus()))
    registered: Observable[frozenset[str]] = dataclasses.field(default_factory=lambda: Observable(frozenset()))
    hung_up: Observable[str] = dataclasses.field(default_factory=lambda: Observable(""))
    in_force: Observable[ModesInForce] = dataclasses.field(default_factory=lambda: Observable(ModesInForce()))
    published: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
