"""The containers that have devices of GPUs, according to the kubelet, for metrics."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from deviceplugin.state import advertisement, pod_resources
from deviceplugin.state.node_state import ModesInForce, Observable, Offer
from gpushare.mig import profile
from gpushare.modes import sharing
from gpushare.modes.hardware_gpu import HardwareGpu

SECONDS: Final = 15.0  # between two polls
_GIB: Final = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A container with a number of devices of one resource on one GPU: GPUs, MIG devices or replicas.

    part: the fraction of the GPU that these devices make up.
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
    """Polls the kubelet.

    hardware: returns the GPUs with their MIG devices; gpus: the GPUs with their memory; in_force: the device IDs that
    the kubelet can allocate.
    """

    kubelet: pod_resources.KubeletDevices
    _: dataclasses.KW_ONLY
    hardware: Callable[[], Iterable[HardwareGpu]]
    gpus: Offer
    in_force: Observable[ModesInForce]

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.kubelet.refresh()
            await asyncio.sleep(SECONDS)

    def all(self) -> list[DeviceHolder]:
        """Return the containers with devices, from the kubelet's last answer."""
        devices = parts(self.hardware(), {gpu.uuid: gpu.memory_bytes for gpu in self.gpus.gpus})
        replicas = {device.id: device.replicas for ids in self.in_force.value.offered.values() for device in ids}
        counts: collections.Counter[tuple[str, str, str, str, str]] = collections.Counter()
        held: dict[tuple[str, str, str, str, str], float] = collections.defaultdict(float)
        for container in self.kubelet.held:
            for identity in container.device_ids if container.resource not in advertisement.COUNTERS else ():
                if (device := sharing.device_of(identity)) in devices:
                    gpu, part = devices[device]
                    key = container.namespace, container.pod, container.container, container.resource, gpu
                    counts[key] += 1
                    held[key] += part / replicas.get(identity, 1)
        return [DeviceHolder(*key, devices=count, part=held[key]) for key, count in sorted(counts.items())]


def parts(gpus: Iterable[HardwareGpu], memory: Mapping[str, int]) -> dict[str, tuple[str, float]]:
    """Return, by UUID of each GPU and MIG device, its GPU and the fraction of it that it makes up.

    The fraction of a MIG device is by memory. memory: the bytes of each GPU.
    """
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
        return 1.0  # an unknown profile counts as the whole GPU
    return min(1.0, memory_bytes / gpu_bytes) if gpu_bytes else 1.0
