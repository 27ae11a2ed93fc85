"""A stand-in for NVIDIA's device plugin: gives a node's simulated GPUs to pods, whole and by UUID.

Like NVIDIA's plugin with its defaults, it lists one device per GPU with the GPU's UUID as ID, and Allocate answers with
NVIDIA_VISIBLE_DEVICES. It knows nothing of gpushare, so a node with it is a node of another device plugin.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2_grpc as services
from gpushare import contract

SOCKET = "other-plugin.sock"


class _WholeGpus(services.DevicePluginServicer):
    """The gRPC service."""

    def __init__(self, uuids: Sequence[str], ended: threading.Event) -> None:
        self._uuids, self._ended = uuids, ended

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        del request, context
        return messages.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """Send the list once; the kubelet counts the devices as healthy as long as the stream lasts."""
        del request, context
        yield messages.ListAndWatchResponse(
            devices=[messages.Device(ID=uuid, health="Healthy") for uuid in self._uuids]
        )
        self._ended.wait()

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        return messages.AllocateResponse(
            container_responses=[
                messages.ContainerAllocateResponse(envs={contract.ENV_VISIBLE_DEVICES: ",".join(asked.devices_ids)})
                for asked in request.container_requests
            ]
        )


@contextlib.contextmanager
def running(directory: Path, uuids: Sequence[str]) -> Iterator[None]:
    """Serve these GPUs to the kubelet whose device plugin directory this is, and register with it once."""
    ended = threading.Event()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    services.add_DevicePluginServicer_to_server(_WholeGpus(uuids, ended), server)
    socket = directory / SOCKET
    socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{directory / 'kubelet.sock'}") as channel:
            stub = services.RegistrationStub(channel)
            stub.Register(
                messages.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=contract.BORROWED_RESOURCE),
                timeout=10,
            )
        yield
    finally:
        ended.set()
        server.stop(grace=1).wait()
