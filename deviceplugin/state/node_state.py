"""What is known of a node's GPUs, as followed values: whoever wants to know reads them here, and asks nobody."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from deviceplugin.state.advertisement import Advertisement
from deviceplugin.state.allocatable import Allocatable
from deviceplugin.state.offer import Observable, Offer, Unreadable
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import Condition
from gpushare.modes import offering
from gpushare.modes.assignment import Assignment


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """What there is to say beside the GPUs: the configuration in force by name, and how it is with it."""

    config: str = ""
    conditions: tuple[Condition, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ModesInForce:
    """What Allocate goes by.

    offered: the devices by resource; settings: how they are given to containers; closed: UUIDs of the GPUs that take
    nothing new; assignments: by UUID what a GPU is used for, None while that is unknown.
    """

    offered: offering.Offer = dataclasses.field(default_factory=dict)
    settings: NodeSettings = dataclasses.field(default_factory=NodeSettings)
    closed: frozenset[str] = frozenset()
    assignments: Mapping[str, Assignment | None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeState:
    """`seen` and `unread` are written by the observation, all else by the reconciler of modes.

    seen: the GPUs as the driver has them; unread: further ones, of which nothing could be read; gpus: those seen, with
    their modes; allocatable: what they can give; advertised: the devices by resource, as the kubelet counts them;
    statement: what the GPUNode says of it; registered: the resources whose plugin the kubelet knows now, and hung_up:
    why it does not read the lists of others, which the plugins write.
    """

    seen: Offer = dataclasses.field(default_factory=Offer)
    unread: Observable[tuple[Unreadable, ...]] = dataclasses.field(default_factory=lambda: Observable(()))
    gpus: Offer = dataclasses.field(default_factory=Offer)
    allocatable: Observable[Allocatable] = dataclasses.field(default_factory=lambda: Observable({}))
    advertised: Observable[Advertisement] = dataclasses.field(default_factory=lambda: Observable({}))
    statement: Observable[Statement] = dataclasses.field(default_factory=lambda: Observable(Statement()))
    registered: Observable[frozenset[str]] = dataclasses.field(default_factory=lambda: Observable(frozenset()))
    hung_up: Observable[str] = dataclasses.field(default_factory=lambda: Observable(""))
    in_force: Observable[ModesInForce] = dataclasses.field(default_factory=lambda: Observable(ModesInForce()))
