"""The gRPC service that the kubelet calls; one instance serves one resource.

A device leaves the kubelet's list in two steps: first it is unhealthy, and after REMOVAL_SECONDS it is gone. The
kubelet chooses devices, calls Allocate, and then looks the devices up in its newest list. In Kubernetes 1.36 a missing
device is a nil pointer there (`allocateContainerResources` in `pkg/kubelet/cm/devicemanager/manager.go`), and the
kubelet crashes. It never chooses unhealthy devices, so after a while no allocation of them is in flight.
"""

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
from deviceplugin.state.node_state import Observable

logger = logging.getLogger(__name__)

REMOVAL_SECONDS: Final = 30.0  # enough for the kubelet to read a list and for a running Allocate to end
# while the kubelet starts, because a deleted pod's replacement may arrive this fast
STARTING_POLL_SECONDS: Final = 0.05
HEALTH: Final = {True: "Healthy", False: "Unhealthy"}
Context = grpc.aio.ServicerContext[Any, Any]


class GradualRemoval:
    """The devices of one resource that the kubelet lists, including those on their way out. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listed: Mapping[str, AdvertisedDevice] = {}
        self._removed_at: Mapping[str, float] = {}  # by id, for devices that are listed but no longer advertised

    def listed(self, advertised: Iterable[AdvertisedDevice]) -> tuple[AdvertisedDevice, ...]:
        """Return the list for the kubelet: the advertised devices, and the removed ones as unhealthy."""
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
        """Return the seconds until the next device may leave the list; None if no device is leaving."""
        first = min(self._removed_at.values(), default=None)
        return None if first is None else max(0.0, first + REMOVAL_SECONDS - self._clock())


class AllocateRefusedError(Exception):
    """The kubelet's request cannot be met. The message appears in the pod's status."""


class ContainerAllocator(Protocol):
    """Allocates the resources of one kind to containers.

    has_preference: whether it matters which devices of a resource the kubelet picks.
    """

    has_preference: bool

    @property
    def needs_start(self) -> bool:
        """Whether the kubelet must call `start` before each container starts."""

    def allocate(self, resource: str, device_ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        """Return what a container with these devices gets. Raises AllocateRefusedError."""

    def stale_devices(self, resource: str) -> int | None:
        """Return how many devices to list in addition to the advertised ones; None once the kubelet has started."""

    def preferred(
        self, resource: str, *, available: Sequence[str], required: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return the best `size` devices of `available`, including all `required` ones. Raises AllocateRefusedError."""

    async def start(self, resource: str, device_ids: Sequence[str]) -> None:
        """Prepare a container with these devices. Raises AllocateRefusedError; the kubelet retries."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedResource:
    """A resource and its allocator."""

    name: str
    answers: ContainerAllocator


class DevicePlugin(services.DevicePluginServicer):
    """The device plugin of one resource.

    calls: ListAndWatch calls so far; streams: those still open; dropped: set while none is open.
    """

    def __init__(self, served: ServedResource, advertised: Observable[Advertisement]) -> None:
        self._name = served.name
        self._answers = served.answers
        self._advertised = advertised
        self._removal = GradualRemoval()
        self.streams = self.calls = 0
        self.dropped = asyncio.Event()
        self.dropped.set()

    async def GetDevicePluginOptions(self, _: messages.Empty, __: Context) -> messages.DevicePluginOptions:  # noqa: N802
        return options(self._answers)

    async def ListAndWatch(self, _: messages.Empty, __: Context) -> AsyncIterator[messages.ListAndWatchResponse]:  # noqa: N802
        """Send the whole list now, and again after each change."""
        self.streams += 1
        self.calls += 1
        self.dropped.clear()
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
                counts = {"devices": len(devices), "healthy": sum(device.healthy for device in devices)}
                logger.info("Sent the devices to the kubelet", extra={"resource": self._name, **counts})
                yield messages.ListAndWatchResponse(devices=map(_message, devices))
        finally:
            change.cancel()
            self.streams -= 1
            if not self.streams:
                self.dropped.set()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: messages.PreferredAllocationRequest, context: Context
    ) -> messages.PreferredAllocationResponse:
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

    async def Allocate(self, request: messages.AllocateRequest, context: Context) -> messages.AllocateResponse:  # noqa: N802
        """Return what each container gets; INVALID_ARGUMENT if the request is refused."""
        answers = []
        for container in request.container_requests:
            try:
                answers.append(self._answers.allocate(self._name, container.devices_ids))
            except AllocateRefusedError as error:
                logger.warning("Refused to allocate", extra={"resource": self._name, "err": str(error)})
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        units = [len(container.devices_ids) for container in request.container_requests]
        logger.info("Allocated", extra={"resource": self._name, "units": units})
        return messages.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self, request: messages.PreStartContainerRequest, context: Context
    ) -> messages.PreStartContainerResponse:
        """Finish what had to wait for the pod's identity; FAILED_PRECONDITION if that is impossible."""
        try:
            await self._answers.start(self._name, request.devices_ids)
        except AllocateRefusedError as error:
            logger.warning("Refused to start a container", extra={"resource": self._name, "err": str(error)})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return messages.PreStartContainerResponse()


def options(answers: ContainerAllocator) -> messages.DevicePluginOptions:
    """Return the optional calls that the kubelet has to make."""
    return messages.DevicePluginOptions(
        get_preferred_allocation_available=answers.has_preference, pre_start_required=answers.needs_start
    )


def _message(device: AdvertisedDevice) -> messages.Device:
    numa = device.numa_node
    topology = None if numa is None else messages.TopologyInfo(nodes=[messages.NUMANode(ID=numa)])
    return messages.Device(ID=device.id, health=HEALTH[device.healthy], topology=topology)
