"""A kubelet's side of the device plugin API, for tests that need no node. The lab has a real kubelet.

Like the real one, it empties its directory when it starts, calls back on the plugin's socket inside Register, and
follows ListAndWatch until it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2_grpc as services
from deviceplugin.kubelet_api import podresources_v1_pb2 as pod_resources
from deviceplugin.kubelet_api import podresources_v1_pb2_grpc as holding_services


class Kubelet(services.RegistrationServicer, holding_services.PodResourcesListerServicer):
    """The kubelet. devices: the last list of each resource, as {id: health}; pods: the devices of each pod, by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[messages.RegisterRequest] = []
        self.devices: dict[str, dict[str, str]] = {}
        self.numa: dict[str, int] = {}
        self.pods: dict[str, tuple[str, list[str]]] = {}
        self.namespace = "ml"  # of the pods
        self.lists = 0
        self.refusal = ""
        self.is_deaf = False  # it registers plugins, but does not read their lists
        self.changed = asyncio.Condition()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        for path in self.directory.iterdir():
            path.unlink()
        self.server = grpc.aio.server()
        services.add_RegistrationServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        await self.server.start()
        # Next to the kubelet's directory, which it empties.
        self.holder = grpc.aio.server()
        holding_services.add_PodResourcesListerServicer_to_server(self, self.holder)
        self.holder.add_insecure_port(f"unix:{self.holdings}")
        await self.holder.start()

    @property
    def holdings(self) -> Path:
        """The pod-resources socket."""
        return self.directory.with_name(f"{self.directory.name}-holds.sock")

    async def List(self, _: Any, __: Any) -> pod_resources.ListPodResourcesResponse:  # noqa: N802
        listed = []
        for name, (resource, ids) in self.pods.items():
            devices = [
                pod_resources.ContainerDevices(resource_name=resource, device_ids=[identity]) for identity in ids
            ]
            container = pod_resources.ContainerResources(name="main", devices=devices)
            listed.append(pod_resources.PodResources(name=name, namespace=self.namespace, containers=[container]))
        return pod_resources.ListPodResourcesResponse(pod_resources=listed)

    async def admit(self, pod: str, resource: str, size: int) -> messages.ContainerAllocateResponse:
        """Admit a pod of `namespace`: ask for a preference, allocate, and list the devices from then on."""
        taken = {identity for held, ids in self.pods.values() if held == resource for identity in ids}
        free = [key for key, health in self.devices[resource].items() if health == "Healthy" and key not in taken]
        if len(free) < size:
            raise LookupError(f"{resource}: {size} wanted, {len(free)} free")
        stub = services.DevicePluginStub(self._channels[resource])
        if (await stub.GetDevicePluginOptions(messages.Empty(), timeout=5)).get_preferred_allocation_available:
            asked = messages.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=size)
            request = messages.PreferredAllocationRequest(container_requests=[asked])
            answer = await stub.GetPreferredAllocation(request, timeout=5)
            preferred = [identity for identity in answer.container_responses[0].deviceIDs if identity in free]
            free = [*preferred, *(identity for identity in free if identity not in preferred)]
        (response,) = (await self.allocate(resource, free[:size])).container_responses
        self.pods[pod] = (resource, free[:size])
        return response

    async def start_container(self, pod: str) -> None:
        """Call PreStartContainer, if the plugin asked for it."""
        resource, ids = self.pods[pod]
        stub = services.DevicePluginStub(self._channels[resource])
        registered = next(request for request in reversed(self.requests) if request.resource_name == resource)
        if registered.options.pre_start_required:
            await stub.PreStartContainer(messages.PreStartContainerRequest(devices_ids=ids), timeout=30)

    async def stop(self) -> None:
        for resource in list(self._tasks):
            await self.drop(resource)
        for channel in self._channels.values():
            await channel.close(None)
        await self.server.stop(None)
        await self.holder.stop(None)

    async def drop(self, resource: str) -> None:
        """Stop following a resource, as after an error on the stream."""
        task = self._tasks.pop(resource)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def Register(self, request: messages.RegisterRequest, context: Any) -> messages.Empty:  # noqa: N802
        if self.refusal:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refusal)
        channel = grpc.aio.insecure_channel(f"unix:{self.directory}/{request.endpoint}")
        stub = services.DevicePluginStub(channel)
        await stub.GetDevicePluginOptions(messages.Empty(), timeout=5)
        self._channels[request.resource_name] = channel
        if not self.is_deaf:
            self._tasks[request.resource_name] = asyncio.create_task(self._follow(request.resource_name, stub))
        async with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
        return messages.Empty()

    async def _follow(self, resource: str, stub: services.DevicePluginStub) -> None:
        with contextlib.suppress(grpc.RpcError):
            async for answer in stub.ListAndWatch(messages.Empty()):
                async with self.changed:
                    self.devices[resource] = {device.ID: device.health for device in answer.devices}
                    self.numa |= {
                        device.ID: device.topology.nodes[0].ID for device in answer.devices if device.topology.nodes
                    }
                    self.lists += 1
                    self.changed.notify_all()

    async def allocate(self, resource: str, *containers: list[str]) -> messages.AllocateResponse:
        requests = [messages.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        stub = services.DevicePluginStub(self._channels[resource])
        return await stub.Allocate(messages.AllocateRequest(container_requests=requests), timeout=5)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)
