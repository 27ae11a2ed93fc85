"""The kubelet's side of the device plugin protocol, as far as the cases need it, over real sockets.

It behaves like Kubernetes' devicemanager; tests/deviceplugin/test_lab_kubelet.py tests with the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2_grpc as services

DIAL_SECONDS = 10.0
START_SECONDS = 30.0
ENDPOINT_REMOVED_SECONDS = 300
UNHEALTHY, HEALTHY = "Unhealthy", "Healthy"
_QUALIFIED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class AdmissionError(Exception):
    """Raised for a pod that is not admitted, with the kubelet's reason."""

    reason = "UnexpectedAdmissionError"


class Kubelet(services.RegistrationServicer):
    """A kubelet.

    calls: the names of its calls in order; ListAndWatch appears once for each time it was opened.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.calls: list[str] = []
        self.requests: list[Any] = []
        self.devices: dict[str, dict[str, Any]] = {}
        self.options: dict[str, Any] = {}
        self.lists = 0
        self.changed = asyncio.Condition()
        self._given: dict[str, set[str]] = {}
        self._stubs: dict[str, Any] = {}
        self._channels: list[grpc.aio.Channel] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Kubelet:
        for path in self.directory.iterdir():
            path.unlink()
        self._server = grpc.aio.server()
        services.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        await self._server.start()
        return self

    async def leave(self) -> None:
        """Close the device list stream."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def __aexit__(self, *_: object) -> None:
        await self.leave()
        for channel in self._channels:
            await channel.close(None)
        await self._server.stop(None)

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.version != "v1beta1":
            await context.abort(grpc.StatusCode.UNKNOWN, f"unsupported version {request.version}")
        if not _QUALIFIED.fullmatch(request.resource_name) or "kubernetes.io/" in request.resource_name:
            await context.abort(grpc.StatusCode.UNKNOWN, f"invalid resource name {request.resource_name}")
        if not (self.directory / request.endpoint).exists():  # a real kubelet tries for DIAL_SECONDS
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial {request.endpoint}")
        channel = grpc.aio.insecure_channel(f"unix:{self.directory}/{request.endpoint}")
        self._channels.append(channel)
        stub = services.DevicePluginStub(channel)
        self.calls.append("GetDevicePluginOptions")
        try:
            options = await stub.GetDevicePluginOptions(messages.Empty(), timeout=DIAL_SECONDS)
        except grpc.RpcError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to ask for options: {error}")
        name = request.resource_name
        if name in self._tasks:
            self._tasks[name].cancel()
        self.options[name], self._stubs[name] = options, stub
        self.calls.append("ListAndWatch")
        self._tasks[name] = asyncio.create_task(self._follow(name, stub))
        return messages.Empty()

    async def _follow(self, resource: str, stub: Any) -> None:
        with contextlib.suppress(grpc.RpcError):
            async for answer in stub.ListAndWatch(messages.Empty()):
                await self._told(resource, {device.ID: device for device in answer.devices})
        for device in self.devices.get(resource, {}).values():
            device.health = UNHEALTHY
        await self._told(resource, self.devices.get(resource, {}))

    async def _told(self, resource: str, devices: dict[str, Any]) -> None:
        async with self.changed:
            self.devices[resource] = devices
            self.lists += 1
            self.changed.notify_all()

    async def until_lists(self, count: int) -> None:
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: self.lists >= count)

    def capacity(self, resource: str) -> int:
        return len(self.devices[resource])

    def allocatable(self, resource: str) -> int:
        return sum(device.health == HEALTHY for device in self.devices[resource].values())

    def hints(self, resource: str) -> list[list[int]] | None:
        """Return the NUMA nodes of its devices; None if no device has one."""
        devices = self.devices[resource].values()
        if not any(device.HasField("topology") for device in devices):
            return None
        return [[node.ID for node in device.topology.nodes] or [-1] for device in devices]

    async def admit(self, resource: str, *counts: int) -> list[list[str]]:
        """Return the devices of each container of a pod that requests `counts`."""
        return [await self._admit_container(resource, count) for count in counts]

    async def _admit_container(self, resource: str, count: int) -> list[str]:
        if resource not in self.devices:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        allocated = self._given.setdefault(resource, set())
        healthy = sorted(device.ID for device in self.devices[resource].values() if device.health == HEALTHY)
        free = [identity for identity in healthy if identity not in allocated]
        if not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if len(free) < count:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. Requested: {count}, Available: {len(free)}"
            )
        try:
            preferred = await self._preferred(resource, free, count)
            chosen = [identity for identity in preferred if identity in free][:count]
            chosen += [identity for identity in free if identity not in chosen][: count - len(chosen)]
            request = messages.AllocateRequest(
                container_requests=[messages.ContainerAllocateRequest(devices_ids=chosen)]
            )
            self.calls.append("Allocate")
            self.requests.append(request)
            answer = await self._stubs[resource].Allocate(request, timeout=DIAL_SECONDS)
        except grpc.RpcError as error:
            raise AdmissionError(f"Allocate failed due to {error.details()}") from error
        if not answer.container_responses:
            raise AdmissionError(f"no containers return in allocation response {answer}")
        allocated.update(chosen)
        return chosen

    async def _preferred(self, resource: str, free: list[str], count: int) -> list[str]:
        if not self.options[resource].get_preferred_allocation_available:
            return []
        question = messages.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=count)
        self.calls.append("GetPreferredAllocation")
        answer = await self._stubs[resource].GetPreferredAllocation(
            messages.PreferredAllocationRequest(container_requests=[question]), timeout=DIAL_SECONDS
        )
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def start_container(self, resource: str, ids: list[str]) -> None:
        if self.options[resource].pre_start_required:
            self.calls.append("PreStartContainer")
            question = messages.PreStartContainerRequest(devices_ids=ids)
            await self._stubs[resource].PreStartContainer(question, timeout=START_SECONDS)
