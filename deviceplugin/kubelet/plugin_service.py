"""The kubelet's calls: messages in, pure functions, messages out. One of these serves one resource."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import grpc

from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2_grpc as services
from deviceplugin.state import advertisement
from deviceplugin.state.advertisement import AdvertisedDevice, Advertisement
from deviceplugin.state.offer import Observable

REMOVAL_SECONDS: Final = 30.0  # for a list to be heard, and for an Allocate, which is answered from memory, to end


class GradualRemoval:
    """Of the devices of one resource. clock: in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listed: Mapping[str, AdvertisedDevice] = {}
        self._removed_at: Mapping[str, float] = {}  # by id of a device that is listed, and advertised no more

    def listed(self, advertised: Iterable[AdvertisedDevice]) -> tuple[AdvertisedDevice, ...]:
        """What the kubelet is to be told while these are advertised: these, and those that leave."""
        now = self._clock()
        wanted = {device.id: device for device in advertised}
        removed_at = {identity: self._removed_at.get(identity, now) for identity in self._listed.keys() - wanted.keys()}
        leaving = {
            identity: dataclasses.replace(device, healthy=False)
            for identity, device in self._listed.items()
            if identity in removed_at and now - removed_at[identity] < REMOVAL_SECONDS
        }
        self._removed_at = {identity: removed_at[identity] for identity in leaving}
        self._listed = wanted | leaving
        return tuple(self._listed.values())

    def due_seconds(self) -> float | None:
        """In how many seconds the next device may be gone; None if none leaves."""
        first = min(self._removed_at.values(), default=None)
        return None if first is None else max(0.0, first + REMOVAL_SECONDS - self._clock())


logger = logging.getLogger(__name__)

STARTING_POLL_SECONDS: Final = 0.05  # while the kubelet starts: a pod comes as soon after another has gone
HEALTH: Final = {True: "Healthy", False: "Unhealthy"}

Context = grpc.aio.ServicerContext[Any, Any]


class AllocateRefusedError(Exception):
    """What the kubelet asked for cannot be given; the sentence ends up in the pod's status."""


class ContainerAllocator(Protocol):
    """What containers get of the resources of one kind.

    has_preference: whether it matters which devices of a resource the kubelet picks.
    """

    has_preference: bool

    @property
    def starts(self) -> bool:
        """Whether `start` is to be called before each start of a container."""

    def allocate(self, resource: str, device_ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        """What a container with these devices gets. Raises AllocateRefusedError."""

    def stale_devices(self, resource: str) -> int | None:
        """How many devices are to be told beside those advertised, for a moment; None once there will be none."""

    def preferred(
        self, resource: str, *, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        """The `size` best of `available`, with all of `required`. Raises AllocateRefusedError."""

    async def start(self, resource: str, device_ids: Sequence[str]) -> None:
        """A container with these devices is about to be made. Raises AllocateRefusedError; the kubelet tries again."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedResource:
    """A resource, and who answers for it."""

    name: str
    answers: ContainerAllocator


class DevicePlugin(services.DevicePluginServicer):
    """One resource's plugin. calls: how many ListAndWatch calls there were; streams: how many are being answered."""

    def __init__(self, served: ServedResource, advertised: Observable[Advertisement]) -> None:
        self._name = served.name
        self._answers = served.answers
        self._advertised = advertised
        self._removal = GradualRemoval()
        self.streams = self.calls = 0

    async def GetDevicePluginOptions(  # noqa: N802
        self, _: messages.Empty, __: Context
    ) -> messages.DevicePluginOptions:
        """Whether we have a preference, and want to be called before each start."""
        return options(self._answers)

    async def ListAndWatch(  # noqa: N802
        self, _: messages.Empty, __: Context
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        """The whole list now, and again whenever it changes."""
        self.streams += 1
        self.calls += 1
        sent = None
        following = self._advertised.follow()
        change = asyncio.ensure_future(anext(following))
        extra: int | None = 0
        try:
            while True:
                due_seconds = self._removal.due_seconds() if extra is None else STARTING_POLL_SECONDS
                await asyncio.wait({change}, timeout=due_seconds)
                if change.done():
                    change = asyncio.ensure_future(anext(following))
                advertised = self._advertised.value.get(self._name, ())
                if extra is not None and advertised:
                    extra = self._answers.stale_devices(self._name)
                devices = self._removal.listed(advertisement.and_more(self._name, advertised, extra or 0))
                if devices == sent:
                    continue
                sent = devices
                logger.info(
                    "Told the kubelet the devices",
                    extra={
                        "resource": self._name,
                        "devices": len(devices),
                        "healthy": sum(device.healthy for device in devices),
                    },
                )
                yield messages.ListAndWatchResponse(
                    devices=[
                        messages.Device(
                            ID=device.id, health=HEALTH[device.healthy], topology=_topology(device.numa_node)
                        )
                        for device in devices
                    ]
                )
        finally:
            change.cancel()
            self.streams -= 1

    async def GetPreferredAllocation(  # noqa: N802
        self, request: messages.PreferredAllocationRequest, context: Context
    ) -> messages.PreferredAllocationResponse:
        """Which of the devices are best together; the kubelet may take others."""
        answers = []
        for container in request.container_requests:
            try:
                chosen = self._answers.preferred(
                    self._name,
                    available=container.available_deviceIDs,
                    required=container.must_include_deviceIDs,
                    size=container.allocation_size,
                )
            except AllocateRefusedError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            answers.append(messages.ContainerPreferredAllocationResponse(deviceIDs=chosen))
        return messages.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(  # noqa: N802
        self, request: messages.AllocateRequest, context: Context
    ) -> messages.AllocateResponse:
        """What each container gets; INVALID_ARGUMENT for what may not be given."""
        answers = []
        for container in request.container_requests:
            try:
                answers.append(self._answers.allocate(self._name, container.devices_ids))
            except AllocateRefusedError as error:
                logger.warning("Refused to allocate", extra={"resource": self._name, "err": str(error)})
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        logger.info(
            "Allocated",
            extra={
                "resource": self._name,
                "units": [len(container.devices_ids) for container in request.container_requests],
            },
        )
        return messages.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self, request: messages.PreStartContainerRequest, context: Context
    ) -> messages.PreStartContainerResponse:
        """What is left to be done once it is known whose container it is; FAILED_PRECONDITION where that cannot be."""
        try:
            await self._answers.start(self._name, request.devices_ids)
        except AllocateRefusedError as error:
            logger.warning("Refused to start a container", extra={"resource": self._name, "err": str(error)})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return messages.PreStartContainerResponse()


def options(answers: ContainerAllocator) -> messages.DevicePluginOptions:
    """What the kubelet is to call."""
    return messages.DevicePluginOptions(
        get_preferred_allocation_available=answers.has_preference, pre_start_required=answers.starts
    )


def _topology(numa_node: int | None) -> messages.TopologyInfo | None:
    return None if numa_node is None else messages.TopologyInfo(nodes=[messages.NUMANode(ID=numa_node)])
