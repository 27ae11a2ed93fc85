"""The kubelet protocol: the agent's real plugin and registration against a kubelet, over real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import grpc

from deviceplugin.kubelet import plugin_registration, plugin_service
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2_grpc as services
from deviceplugin.state.advertisement import AdvertisedDevice, socket_name
from deviceplugin.state.node_state import Observable
from tests.conformance import kubelet
from tests.conformance.runner import Case, Facets, OutsideError

GPU = "nvidia.com/gpu"
LISTED = tuple(AdvertisedDevice(identity, healthy=True) for identity in "ab")


class Answers:
    """The agent's decisions, as a case defines them."""

    def __init__(self, *, preferred: Sequence[str] | None = None, refusal: str = "") -> None:
        self.has_preference = preferred is not None
        self.needs_start = False
        self._preferred = preferred or ()
        self._refusal = refusal

    def stale_devices(self, _: str) -> int | None:
        """Return none: GPUs are not counters."""
        return None

    async def start(self, _: str, __: Sequence[str]) -> None:
        """Fail: NVIDIA's plugin does not request PreStartContainer calls."""

    def allocate(self, resource: str, device_ids: Sequence[str]) -> messages.ContainerAllocateResponse:  # noqa: ARG002 - as the agent asks
        if self._refusal:
            raise plugin_service.AllocateRefusedError(self._refusal)
        return messages.ContainerAllocateResponse()

    def preferred(self, resource: str, **_: Any) -> Sequence[str]:  # noqa: ARG002
        if self._refusal:
            raise plugin_service.AllocateRefusedError(self._refusal)
        return self._preferred


class Node:
    """A kubelet, with a registered plugin after `plug` was called."""

    def __init__(self, asked: kubelet.Kubelet) -> None:
        self.kubelet = asked
        self.advertised = Observable[Mapping[str, tuple[AdvertisedDevice, ...]]]({GPU: LISTED})
        self._plugin: plugin_registration.Registration | None = None

    async def plug(self, answers: Answers | None = None) -> None:
        served = plugin_service.ServedResource(GPU, answers or Answers())
        self._plugin = plugin_registration.Registration(
            served, advertised=self.advertised, directory=self.kubelet.directory
        )
        await self._plugin.step()
        assert not self._plugin.problem, self._plugin.problem
        await self.kubelet.until_lists(1)

    async def unplug(self) -> None:
        if self._plugin is None:
            return
        running = asyncio.create_task(self._plugin.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        self._plugin = None


@asynccontextmanager
async def node() -> Any:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as directory:
        async with kubelet.Kubelet(Path(directory)) as asked:
            this_node = Node(asked)
            try:
                yield this_node
            finally:
                await asked.leave()
                await this_node.unplug()


@asynccontextmanager
async def foreign(node: Node, plugin: services.DevicePluginServicer) -> Any:
    """Build a plugin that does what ours never does."""
    server = grpc.aio.server()
    services.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{node.kubelet.directory}/{socket_name(GPU)}")
    await server.start()
    try:
        await register(node)
        await node.kubelet.until_lists(1)
        yield
    finally:
        await server.stop(None)


async def register(node: Node, name: str = GPU, version: str = plugin_registration.API_VERSION) -> None:
    """Make only the call, without a plugin server."""
    async with grpc.aio.insecure_channel(f"unix:{node.kubelet.directory}/kubelet.sock") as channel:
        request = messages.RegisterRequest(version=version, endpoint=socket_name(GPU), resource_name=name)
        await services.RegistrationStub(channel).Register(request, timeout=20)


async def is_refused(call: Awaitable[Any]) -> bool:
    try:
        await call
    except (grpc.RpcError, kubelet.AdmissionError):
        return True
    return False


async def resource_name(node: Node) -> Any:
    await node.plug()
    return Facets(error=await is_refused(register(node, "gpu")))


async def serve_before_register(node: Node) -> Any:
    reason = f"kubelet dials the endpoint inside Register ({kubelet.DIAL_SECONDS:g} s)"
    return Facets(error=await is_refused(register(node)), reason=reason)


async def options_asked(node: Node) -> Any:
    await node.plug()
    return Facets(calls=node.kubelet.calls)


async def full_list(node: Node) -> Any:
    await node.plug()
    with mock.patch.object(plugin_service, "REMOVAL_SECONDS", 0.1):  # a removed GPU is unhealthy for a while first
        node.advertised.publish({GPU: LISTED[:1]})
        await node.kubelet.until_lists(3)
    return counts(node)


async def stream_end(node: Node) -> Any:
    await node.plug()
    await node.unplug()
    await node.kubelet.until_lists(2)
    return Facets(counts(node), endpoint_removed_after_s=kubelet.ENDPOINT_REMOVED_SECONDS)


def counts(node: Node) -> Facets:
    return Facets(capacity=node.kubelet.capacity(GPU), allocatable=node.kubelet.allocatable(GPU))


async def allocate_shape(node: Node) -> Any:
    await node.plug()
    await node.kubelet.admit(GPU, 1, 1)
    sizes = {len(request.container_requests) for request in node.kubelet.requests}
    return Facets(allocate_calls=len(node.kubelet.requests), container_requests_per_call=max(sizes))


async def allocate_error(node: Node) -> Any:
    await node.plug(Answers(refusal="not this one"))
    return await why_not_admitted(node)


async def why_not_admitted(node: Node) -> Any:
    try:
        await node.kubelet.admit(GPU, 1)
    except kubelet.AdmissionError as error:
        return Facets(pod_reason=error.reason, message=str(error), error=True)
    return Facets(pod_reason="", error=False)


class _Foreign(plugin_service.DevicePlugin):
    def __init__(self, *, options: messages.DevicePluginOptions | None = None) -> None:
        super().__init__(plugin_service.ServedResource(GPU, Answers()), Observable({GPU: LISTED}))
        self._options = options or messages.DevicePluginOptions()

    async def GetDevicePluginOptions(self, _: Any, __: Any) -> messages.DevicePluginOptions:  # noqa: N802
        return self._options

    async def Allocate(self, _: Any, __: Any) -> messages.AllocateResponse:  # noqa: N802
        return messages.AllocateResponse()

    async def PreStartContainer(self, _: Any, __: Any) -> messages.PreStartContainerResponse:  # noqa: N802
        return messages.PreStartContainerResponse()


async def allocate_empty(node: Node) -> Any:
    async with foreign(node, _Foreign()):
        return Facets(error=await is_refused(node.kubelet.admit(GPU, 1)))


async def preferred_only_if_offered(node: Node) -> Any:
    await node.plug()
    await node.kubelet.admit(GPU, 1)
    return Facets(GetPreferredAllocation_called="GetPreferredAllocation" in node.kubelet.calls)


async def preferred_foreign_ids(node: Node) -> Any:
    await node.plug(Answers(preferred=["z", "b"]))
    ((first, second),) = await node.kubelet.admit(GPU, 2)
    return Facets(ids_ignored="z" not in (first, second), rest_chosen_by_kubelet=(first, second) == ("b", "a"))


async def preferred_short(node: Node) -> Any:
    await node.plug(Answers(preferred=["b"]))
    ((first, second),) = await node.kubelet.admit(GPU, 2)
    return Facets(rest_chosen_by_kubelet=(first, second) == ("b", "a"), filled_up_by_kubelet=second == "a", size=2)


async def preferred_error(node: Node) -> Any:
    await node.plug(Answers(preferred=["a"], refusal="not these"))
    return await why_not_admitted(node)


async def unknown_version(node: Node) -> Any:
    await node.plug()
    return Facets(error=await is_refused(register(node, version="v1alpha")))


async def registered_twice(node: Node) -> Any:
    await node.plug()
    await register(node)
    await node.kubelet.until_lists(2)
    return Facets(counts(node), replaced=node.kubelet.calls.count("ListAndWatch") == 2, error=False, second_wins=True)


async def unhealthy(node: Node) -> Any:
    await node.plug()
    node.advertised.publish({GPU: (dataclasses.replace(LISTED[0], healthy=False), LISTED[1])})
    await node.kubelet.until_lists(2)
    return counts(node)


async def recovered(node: Node) -> Any:
    await unhealthy(node)
    node.advertised.publish({GPU: LISTED})
    await node.kubelet.until_lists(3)
    return Facets(counts(node), recovered=node.kubelet.allocatable(GPU) == len(LISTED))


async def with_topology(node: Node) -> Any:
    node.advertised = Observable({GPU: (dataclasses.replace(LISTED[0], numa_node=1), LISTED[1])})
    await node.plug()
    return Facets(hints=node.kubelet.hints(GPU), numa_nodes=node.kubelet.hints(GPU))


async def prestart(node: Node) -> Any:
    async with foreign(node, _Foreign(options=messages.DevicePluginOptions(pre_start_required=True))):
        await node.kubelet.start_container(GPU, ["a"])
    return Facets(PreStartContainer_called="PreStartContainer" in node.kubelet.calls, timeout_s=kubelet.START_SECONDS)


async def no_topology(node: Node) -> Any:
    await node.plug()
    return Facets(hints=node.kubelet.hints(GPU))


Story = Callable[[Node], Awaitable[Any]]
# Event and the words that describe it; the first entry whose words all occur is used.
STORIES: tuple[tuple[str, tuple[str, ...], Story], ...] = (
    ("Register", ("no domain",), resource_name),
    ("Register", ("version",), unknown_version),
    ("Register", ("not yet serving",), serve_before_register),
    ("Register", ("second",), registered_twice),
    ("Register", ("twice",), registered_twice),
    ("Register", ("again",), registered_twice),
    ("Register", ("plugin serves",), options_asked),
    ("ListAndWatch", ("first message [a,b], second message [a]",), full_list),
    ("ListAndWatch", ("exits",), stream_end),
    ("ListAndWatch", ("unhealthy", "then healthy"), recovered),
    ("ListAndWatch", ("healthy again",), recovered),
    ("ListAndWatch", ("unhealthy",), unhealthy),
    ("admission", ("two containers of 1 device each",), allocate_shape),
    ("admission", ("allocate returns an error",), allocate_error),
    ("admission", ("no container_responses",), allocate_empty),
    ("admission", ("get_preferred_allocation_available=false",), preferred_only_if_offered),
    ("admission", ("getpreferredallocation", "outside available"), preferred_foreign_ids),
    ("admission", ("getpreferredallocation", "error"), preferred_error),
    ("admission", ("getpreferredallocation", "fewer"), preferred_short),
    ("admission", ("getpreferredallocation", "short"), preferred_short),
    ("admission", ("without topology",), no_topology),
    ("admission", ("topology",), with_topology),
    ("container start", ("pre_start_required=true",), prestart),
)


def protocol_behaviour(case: Case) -> Any:
    when, condition = case.input["when"], case.input["given"]
    if when == "API server":
        raise OutsideError("what an API server does by itself: nothing of gpushare takes part")
    for moment, words, story in STORIES:
        if moment == when and all(word in condition.lower() for word in words):
            return asyncio.run(_told(story))
    raise NotImplementedError(f"no story covers {condition!r} when {when}")


async def _told(story: Story) -> Any:
    async with asyncio.timeout(30), node() as this_node:
        return await story(this_node)


OPERATIONS = {"protocol_behaviour": protocol_behaviour}
OUTSIDE = {
    "daemonset_security_context": "gpushare's agent is also the arbiter and makes MIG devices: it has additional rights, "
    "the same for every device list strategy; tests/config tests them",
}
