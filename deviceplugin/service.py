"""The kubelet's calls: messages in, pure functions, messages out.

Allocate gives every share container the same three mounts and nothing else. It cannot know which pod it is called for,
and need not: the GPU is in the pod's environment, and the limits are the arbiter's to give, which asks the kernel who
is there.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from deviceplugin import advertisement
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2_grpc as services
from deviceplugin.offer import Offer
from gpushare import contract, errors

logger = logging.getLogger(__name__)

HEALTH = {True: "Healthy", False: "Unhealthy"}

Context = grpc.aio.ServicerContext[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Mounts:
    """Where on the host the things lie that a share container gets."""

    library: Path
    preload_file: Path
    arbiter_directory: Path


class DevicePlugin(services.DevicePluginServicer):
    """One resource's plugin; `streams` is how many ListAndWatch calls are being answered."""

    def __init__(self, resource: advertisement.Resource, offer: Offer, mounts: Mounts) -> None:
        self._resource = resource
        self._offer = offer
        self._mounts = mounts
        self.streams = 0

    async def GetDevicePluginOptions(  # noqa: N802
        self, _: messages.Empty, __: Context
    ) -> messages.DevicePluginOptions:
        """Nothing optional: neither a preference, as ids are counters, nor a call before each start."""
        return messages.DevicePluginOptions()

    async def ListAndWatch(  # noqa: N802
        self, _: messages.Empty, __: Context
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        """The whole list now, and again whenever it changes."""
        self.streams += 1
        try:
            async for gpus in self._offer.follow():
                listed = advertisement.devices(gpus, self._resource)
                logger.info(
                    "Told the kubelet the devices",
                    extra={
                        "resource": self._resource.name,
                        "devices": len(listed),
                        "healthy": sum(device.healthy for device in listed),
                    },
                )
                yield messages.ListAndWatchResponse(
                    devices=[messages.Device(ID=device.id, health=HEALTH[device.healthy]) for device in listed]
                )
        finally:
            self.streams -= 1

    async def Allocate(  # noqa: N802
        self, request: messages.AllocateRequest, context: Context
    ) -> messages.AllocateResponse:
        """The mounts of a share container; INVALID_ARGUMENT for an id that was never offered."""
        known = {device.id for device in advertisement.devices(self._offer.gpus, self._resource)}
        for container in request.container_requests:
            for identity in container.devices_ids:
                if identity not in known:
                    await context.abort(
                        grpc.StatusCode.INVALID_ARGUMENT,
                        f"{self._resource.name} has no device {errors.quoted(identity)} on this node",
                    )
        logger.info(
            "Allocated",
            extra={
                "resource": self._resource.name,
                "units": [len(container.devices_ids) for container in request.container_requests],
            },
        )
        answer = messages.ContainerAllocateResponse(
            mounts=[
                _read_only(contract.CONTAINER_LIBRARY, self._mounts.library),
                _read_only(contract.CONTAINER_PRELOAD_FILE, self._mounts.preload_file),
                # Connecting to a socket writes nothing to the file system, so read-only is enough for it too.
                _read_only(contract.CONTAINER_ARBITER_DIRECTORY, self._mounts.arbiter_directory),
            ]
        )
        return messages.AllocateResponse(container_responses=[answer] * len(request.container_requests))


def _read_only(container_path: str, host_path: Path) -> messages.Mount:
    return messages.Mount(container_path=container_path, host_path=str(host_path), read_only=True)
