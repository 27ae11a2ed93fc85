"""The node's GPUs and MIG devices, as observable values that the agent's components publish and follow.

Followers see the newest value, not every value: a slow reader of ListAndWatch must not build up a backlog of outdated
lists.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Generic, TypeVar

from deviceplugin.state.advertisement import Advertisement, Allocatable
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import Condition, Gpu
from gpushare.mig.instance_layout import PlacedInstance, ProfileGeometry
from gpushare.mig.profile import Profile
from gpushare.modes.assignment import Assignment, DeviceOffer

Value = TypeVar("Value")


class Observable(Generic[Value]):
    """A value that can be followed: by iterating over `follow`, or by an event that each change sets."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self._next = asyncio.Event()
        self._woken: list[asyncio.Event] = []

    def publish(self, value: Value) -> None:
        """Replace the value and notify followers; no-op if it is equal."""
        if value == self.value:
            return
        self.value = value
        self._next.set()
        self._next = asyncio.Event()
        for event in self._woken:
            event.set()

    def wake(self, event: asyncio.Event) -> None:
        """Set the event now, and on every change."""
        self._woken.append(event)
        event.set()

    async def follow(self) -> AsyncIterator[Value]:
        """Yield the current value, and the new one after each change, without end."""
        while True:
            changed, value = self._next, self.value
            yield value
            if self.value is value:
                await changed.wait()


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """A GPU that does not answer.

    index: its number; None if the driver does not count it. bus_id: set if only the kernel lists the GPU. Without
    either, the driver itself does not answer.
    """

    index: int | None
    reason: str
    bus_id: str = ""

    def __str__(self) -> str:
        name = "the driver" if self.index is None and not self.bus_id else f"GPU {self.bus_id or self.index}"
        return f"{name} does not answer: {self.reason}"


class ObservableGpus(Observable[tuple[Gpu, ...]]):
    """The node's GPUs, observable."""

    def __init__(self, gpus: tuple[Gpu, ...] = ()) -> None:
        super().__init__(gpus)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.value


@dataclasses.dataclass(frozen=True, slots=True)
class Wake:
    """The events that wake the reconcile loops. A part that notices a change need not know which loops it concerns."""

    modes: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    labels: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    status: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def all(self) -> None:
        for event in (self.modes, self.labels, self.status):
            event.set()


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

    seen: ObservableGpus = dataclasses.field(default_factory=ObservableGpus)
    unread: Observable[tuple[Unreadable, ...]] = dataclasses.field(default_factory=lambda: Observable(()))
    gpus: ObservableGpus = dataclasses.field(default_factory=ObservableGpus)
    allocatable: Observable[Allocatable] = dataclasses.field(default_factory=lambda: Observable({}))
    advertised: Observable[Advertisement] = dataclasses.field(default_factory=lambda: Observable({}))
    config_status: Observable[ConfigStatus] = dataclasses.field(default_factory=lambda: Observable(ConfigStatus()))
    registered: Observable[frozenset[str]] = dataclasses.field(default_factory=lambda: Observable(frozenset()))
    hung_up: Observable[str] = dataclasses.field(default_factory=lambda: Observable(""))
    in_force: Observable[ModesInForce] = dataclasses.field(default_factory=lambda: Observable(ModesInForce()))
    published: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


@dataclasses.dataclass(frozen=True, slots=True)
class MigMode:
    """Whether a GPU is in MIG mode, and whether it will be after its next reset."""

    current: bool
    pending: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance. uuid: its ID as a MIG device. busy: whether a process computes on it."""

    id: int
    slices: int
    uuid: str
    busy: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance with its placement and compute instances; a half-created one has none."""

    id: int
    kind: ProfileGeometry
    start: int
    parts: tuple[ComputeInstance, ...] = ()

    @property
    def placed(self) -> PlacedInstance:
        return PlacedInstance(self.kind, self.start)


@dataclasses.dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device with the attributes that containers, labels and metrics need.

    index: its number on its GPU, the second one in NVIDIA's `0:1`. parent: UUID of the GPU. memory_bytes: memory of its
    GPU instance. multiprocessors, engines: from NVML's device attributes.
    """

    uuid: str
    parent: str
    index: int
    gpu_instance: int
    compute_instance: int
    profile: Profile
    memory_bytes: int
    multiprocessors: int
    engines: dict[str, int]  # copy, decoder, encoder, jpeg, ofa
    start: int = 0  # the first memory slice of its GPU instance
