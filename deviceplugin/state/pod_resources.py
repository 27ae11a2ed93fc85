"""The devices of containers, from the kubelet's pod-resources API and its checkpoint, and the users of each GPU.

The kubelet does not report when a device becomes free, so the agent queries it again whenever that matters. While the
kubelet is down its API does not answer, and just after its start it lists no devices. In that moment the kubelet admits
its existing pods by its checkpoint (`pkg/kubelet/cm/devicemanager/checkpoint` of Kubernetes).

Each source sees users that the others miss. The ledger has shares whose pods have not started, the kubelet has
containers with a device that do not compute yet, and the driver sees processes that neither knows.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import grpc

from deviceplugin.kubelet_api import podresources_v1_pb2 as messages
from deviceplugin.kubelet_api import podresources_v1_pb2_grpc as services
from deviceplugin.state.advertisement import COUNTERS
from gpushare import pod
from gpushare.allocation import Allocation
from gpushare.modes import device_resources
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
    return from_answer(answer)


async def held_by_all(
    socket: Path, checkpoint: Path, pods: Callable[[], Iterable[PodJson]]
) -> tuple[ContainerDevices, ...]:
    """Return the same with init containers, which only the kubelet's checkpoint lists, of running pods."""
    listed, by_container = await asyncio.gather(held(socket), asyncio.to_thread(checkpoint_containers, checkpoint))
    names = {pod.uid(manifest): pod.namespaced_name(manifest) for manifest in pods() if not pod.is_terminal(manifest)}
    return listed + tuple(
        ContainerDevices(*names[uid], container, resource, tuple(ids))
        for (uid, container, resource), ids in by_container.items()
        if uid in names
    )


def from_answer(answer: messages.ListPodResourcesResponse) -> tuple[ContainerDevices, ...]:
    return tuple(
        ContainerDevices(entry.namespace, entry.name, container.name, devices.resource_name, tuple(devices.device_ids))
        for entry in answer.pod_resources
        for container in entry.containers
        for devices in container.devices
    )


CHECKPOINT_NAME: Final = "kubelet_internal_checkpoint"  # in the kubelet's device plugin directory


def checkpoint_containers(path: Path) -> Mapping[tuple[str, str, str], frozenset[str]]:
    """Return device IDs by pod UID, container name and resource, also of ended containers; none if it is unreadable."""
    held: dict[tuple[str, str, str], frozenset[str]] = {}
    try:
        for entry in json.loads(path.read_bytes())["Data"]["PodDeviceEntries"] or ():
            ids = frozenset(str(device_id) for of_node in entry["DeviceIDs"].values() for device_id in of_node)
            key = str(entry["PodUID"]), str(entry.get("ContainerName")), str(entry["ResourceName"])
            held[key] = held.get(key, frozenset()) | ids
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return held


def read_checkpoint(path: Path) -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Return the device IDs of each pod's containers, running or ended, by pod UID and resource."""
    by_pod: dict[str, dict[str, frozenset[str]]] = collections.defaultdict(dict)
    for (uid, _, resource), ids in checkpoint_containers(path).items():
        by_pod[uid][resource] = by_pod[uid].get(resource, frozenset()) | ids
    return by_pod


def of_pods(by_pod: Mapping[str, Mapping[str, frozenset[str]]], uids: Container[str]) -> Mapping[str, frozenset[str]]:
    """Return the device IDs of these pods, by resource. The kubelet drops a deleted pod late."""
    device_ids: dict[str, frozenset[str]] = {}
    for uid, held in by_pod.items():
        if uid in uids:
            for resource, ids in held.items():
                device_ids[resource] = device_ids.get(resource, frozenset()) | ids
    return device_ids


@dataclasses.dataclass(frozen=True, slots=True)
class GpuUser:
    """A process that computes on a GPU. pod: `NAMESPACE/NAME`, or "" if it runs in no known pod."""

    pid: int
    name: str
    pod: str = ""


def users(
    *,
    allocations: Iterable[Allocation],
    held: Iterable[ContainerDevices],
    just_given: Iterable[str],
    processes: Mapping[str, Iterable[GpuUser]],
    gpu_of: Mapping[str, str],
    ended: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Return the users of each GPU in a few words each, by GPU UUID.

    held: the containers' devices as the kubelet lists them; counters among them are ignored, as they belong to no GPU.
    just_given: device IDs that were just allocated and that the kubelet may not list yet.
    gpu_of: the GPU's UUID by the UUID of each GPU and MIG device.
    ended: completed pods, as NAMESPACE/NAME, that the kubelet may still list.
    """
    users_of: dict[str, dict[str, None]] = collections.defaultdict(dict)
    known: set[str] = set()
    for entry in allocations:
        if not entry.is_backfill_reservation:  # a backfill reservation has no pod yet, and gives way
            unnamed = f"a pod of namespace {entry.pod.namespace} that is being created"
            for uuid in entry.gpu_uuids:
                users_of[uuid][f"pod {entry.pod.namespace}/{entry.pod.name}" if entry.pod.name else unnamed] = None
    for container in held:
        if container.resource in COUNTERS:
            continue
        name = f"{container.namespace}/{container.pod}"
        for uuid in {gpu_of[gpu] for gpu in map(device_resources.device_of, container.device_ids) if gpu in gpu_of}:
            known.update(container.device_ids)
            if name not in ended:
                users_of[uuid][f"pod {name}"] = None
    for identity in just_given:
        if identity not in known and device_resources.device_of(identity) in gpu_of:
            users_of[gpu_of[device_resources.device_of(identity)]]["a pod that is being started"] = None
    for uuid, running in processes.items():
        for process in running:
            users_of[uuid][f"pod {process.pod}" if process.pod else f"process {process.pid} ({process.name})"] = None
    return {uuid: tuple(words) for uuid, words in users_of.items()}
