"""The containers that the kubelet gave devices of GPUs to, as it last told, for metrics."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from deviceplugin.modes.gpu_users import GpuUsers
from deviceplugin.state import advertisement, gpu_usage
from deviceplugin.state.node_state import ModesInForce
from deviceplugin.state.offer import Observable, Offer
from gpushare.mig import profile
from gpushare.modes.hardware_gpu import HardwareGpu

SECONDS: Final = 15.0  # between two questions
_GIB: Final = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A container with `devices` ids of a resource, be they GPUs, MIG devices or replicas, on one GPU.

    part: of the GPU, that they are together.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    gpu: str
    devices: int
    part: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceHolders:
    """hardware: the GPUs of the node; gpus: with their memory; in_force: the ids that the kubelet may give out."""

    witness: GpuUsers
    _: dataclasses.KW_ONLY
    hardware: Callable[[], Iterable[HardwareGpu]]
    gpus: Offer
    in_force: Observable[ModesInForce]

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            await self.witness.ask_kubelet()
            await asyncio.sleep(SECONDS)

    def all(self) -> list[DeviceHolder]:
        """The containers with devices, as the kubelet last told."""
        devices = parts(self.hardware(), {gpu.uuid: gpu.memory_bytes for gpu in self.gpus.gpus})
        replicas = {device.id: device.replicas for ids in self.in_force.value.offered.values() for device in ids}
        counts: collections.Counter[tuple[str, str, str, str, str]] = collections.Counter()
        held: dict[tuple[str, str, str, str, str], float] = collections.defaultdict(float)
        for container in self.witness.held:
            for identity in container.device_ids if container.resource not in advertisement.COUNTERS else ():
                if (device := gpu_usage.without_replica(identity)) in devices:
                    gpu, part = devices[device]
                    key = container.namespace, container.pod, container.container, container.resource, gpu
                    counts[key] += 1
                    held[key] += part / replicas.get(identity, 1)
        return [DeviceHolder(*key, devices=count, part=held[key]) for key, count in sorted(counts.items())]


def parts(gpus: Iterable[HardwareGpu], memory: Mapping[str, int]) -> dict[str, tuple[str, float]]:
    """By the UUID of each GPU and MIG device its GPU, and the part of it that it is: of a MIG device by its memory."""
    by_uuid = {}
    for gpu in gpus:
        by_uuid[gpu.uuid] = gpu.uuid, 1.0
        for device in gpu.mig_devices:
            by_uuid[device.uuid] = gpu.uuid, _part(device.profile, memory.get(gpu.uuid, 0))
    return by_uuid


def _part(name: str, gpu_bytes: int) -> float:
    try:
        memory_bytes = profile.parse(name).memory_gb * _GIB
    except profile.ProfileError:
        return 1.0  # that nothing is known of is charged whole
    return min(1.0, memory_bytes / gpu_bytes) if gpu_bytes else 1.0
