"""The GPUs as configurations look at them: with MIG, and with what tells one model from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from deviceplugin.hardware import nvml, nvml_call, nvml_mig
from deviceplugin.state import mig_instance
from gpushare.gpu import Gpu
from gpushare.modes import mps_clients
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice


@dataclasses.dataclass(frozen=True, slots=True)
class DiscoveredGpu:
    """A GPU, and its MIG devices as the driver describes them."""

    gpu: HardwareGpu
    devices: tuple[mig_instance.MigDevice, ...] = ()


DiscoveredGpus = Mapping[str, DiscoveredGpu]  # by UUID
NONE: Final[DiscoveredGpus] = {}


def read(opened: nvml.Nvml, gpus: Iterable[Gpu], known: DiscoveredGpus) -> DiscoveredGpus:
    """The cards of these GPUs; one that does not answer is as it was `known`, or a GPU without MIG."""
    driver = nvml_mig.MigDriver(opened)
    discovered = {}
    for gpu in gpus:
        try:
            discovered[gpu.uuid] = _gpu(opened, driver, gpu)
        except nvml_call.NvmlError:
            unread = HardwareGpu(gpu.uuid, gpu.index, gpu.model, memory_is_known=gpu.memory_bytes > 0)
            discovered[gpu.uuid] = known.get(gpu.uuid) or DiscoveredGpu(unread)
    return discovered


def _gpu(opened: nvml.Nvml, driver: nvml_mig.MigDriver, gpu: Gpu) -> DiscoveredGpu:
    mode = driver.mig_mode(gpu.uuid)
    enabled = mode is not None and mode.current
    devices = driver.mig_devices(gpu.uuid) if enabled else ()
    hardware = HardwareGpu(
        gpu.uuid,
        gpu.index,
        gpu.model,
        mig_capable=mode is not None,
        mig_enabled=enabled,
        mig_devices=tuple(HardwareMigDevice(device.uuid, device.index, str(device.profile)) for device in devices),
        hardware=opened.device_id(gpu.uuid) if mode is not None else None,
        geometry=driver.mig_geometry(gpu.uuid) if mode is not None else None,
        most_mps_clients=mps_clients.max_clients(gpu.compute_capability),
        compute_mode=driver.compute_mode(gpu.uuid),
        memory_is_known=gpu.memory_bytes > 0,
    )
    return DiscoveredGpu(hardware, devices)
