"""Which pod holds which device, asked of the kubelet: the only one who knows after a restart of the agent.

The kubelet never says that a device was given back, so it is asked whenever that matters.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import grpc

from deviceplugin.kubelet_api import podresources_v1_pb2 as messages
from deviceplugin.kubelet_api import podresources_v1_pb2_grpc as services
from deviceplugin.state import kubelet_checkpoint
from gpushare import pod
from gpushare.pod import PodJson

ASK_SECONDS: Final = 5.0
_MAX_BYTES: Final = 16 << 20  # a full node with thousands of device ids needs one
# Which proxy a cluster's environment names is nothing to a socket.
_CHANNEL_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", _MAX_BYTES))


class PodResourcesError(Exception):
    """The kubelet does not say who holds what; the message says why, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerDevices:
    """What a container holds of one resource."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


async def held(socket: Path) -> tuple[ContainerDevices, ...]:
    """Everything that containers hold on this node. Raises PodResourcesError."""
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS) as channel:
            stub = services.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.List(messages.ListPodResourcesRequest(), timeout=ASK_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesError(
            f"the kubelet does not say on {socket} which pod holds which device ({error.details()}): it is stopped, or "
            "--pod-resources-socket is wrong"
        ) from error
    return read(answer)


async def held_by_all(socket: Path, kept: Path, pods: Callable[[], Iterable[PodJson]]) -> tuple[ContainerDevices, ...]:
    """The same with init containers, of which only the kubelet's checkpoint tells, for the pods that are not over."""
    listed, by_container = await asyncio.gather(held(socket), asyncio.to_thread(kubelet_checkpoint.containers, kept))
    names = {pod.uid(manifest): pod.namespaced_name(manifest) for manifest in pods() if not pod.is_terminal(manifest)}
    return listed + tuple(
        ContainerDevices(*names[uid], container, resource, tuple(ids))
        for (uid, container, resource), ids in by_container.items()
        if uid in names
    )


def read(answer: messages.ListPodResourcesResponse) -> tuple[ContainerDevices, ...]:
    """Ask the kubelet, and return what each container holds."""
    return tuple(
        ContainerDevices(entry.namespace, entry.name, container.name, devices.resource_name, tuple(devices.device_ids))
        for entry in answer.pod_resources
        for container in entry.containers
        for devices in container.devices
    )
