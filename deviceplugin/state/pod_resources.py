"""Asks the kubelet which container has which devices. After a restart of the agent, only the kubelet knows that.

The kubelet does not report when a device becomes free, so the agent queries it again whenever that matters.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

import grpc

from deviceplugin.kubelet_api import podresources_v1_pb2 as messages
from deviceplugin.kubelet_api import podresources_v1_pb2_grpc as services
from deviceplugin.state import kubelet_checkpoint
from gpushare import pod
from gpushare.pod import PodJson

ASK_SECONDS: Final = 5.0
_MAX_BYTES: Final = 16 << 20  # a full node with thousands of device IDs needs 1 MiB
# A Unix socket must not go through the proxy that the environment may name.
_CHANNEL_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", _MAX_BYTES))


class PodResourcesError(Exception):
    """The kubelet did not answer; the message gives the reason and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The devices of one resource that a container has."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


class KubeletDevices(Protocol):
    """The devices of all containers in the kubelet's last answer."""

    @property
    def held(self) -> tuple[ContainerDevices, ...]: ...

    async def refresh(self) -> str:
        """Ask the kubelet again; return why that was not possible, or ""."""


async def held(socket: Path) -> tuple[ContainerDevices, ...]:
    """Return the devices of all containers on this node, except init containers. Raises PodResourcesError."""
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS) as channel:
            stub = services.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.List(messages.ListPodResourcesRequest(), timeout=ASK_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesError(
            f"the kubelet does not report on {socket} which pod has which device ({error.details()}): it is stopped, "
            "or --pod-resources-socket is wrong"
        ) from error
    return read(answer)


async def held_by_all(
    socket: Path, checkpoint: Path, pods: Callable[[], Iterable[PodJson]]
) -> tuple[ContainerDevices, ...]:
    """Return the same with init containers, which only the kubelet's checkpoint lists, of running pods."""
    listed, by_container = await asyncio.gather(
        held(socket), asyncio.to_thread(kubelet_checkpoint.containers, checkpoint)
    )
    names = {pod.uid(manifest): pod.namespaced_name(manifest) for manifest in pods() if not pod.is_terminal(manifest)}
    return listed + tuple(
        ContainerDevices(*names[uid], container, resource, tuple(ids))
        for (uid, container, resource), ids in by_container.items()
        if uid in names
    )


def read(answer: messages.ListPodResourcesResponse) -> tuple[ContainerDevices, ...]:
    """Convert the kubelet's answer."""
    return tuple(
        ContainerDevices(entry.namespace, entry.name, container.name, devices.resource_name, tuple(devices.device_ids))
        for entry in answer.pod_resources
        for container in entry.containers
        for devices in container.devices
    )
