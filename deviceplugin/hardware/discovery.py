"""The GPUs as configurations look at them: with MIG, and with what tells one model from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.allocation import answer
from deviceplugin.hardware import nvml, nvml_call, nvml_mig
from deviceplugin.state import mig_instance
from gpushare.gpu import Gpu
from gpushare.modes import mps_clients
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice

NONE: Final[DiscoveredGpus] = {}
_ROOTS: Final = (Path("/"),)


@dataclasses.dataclass(frozen=True, slots=True)
class DiscoveredGpu:
    """A GPU, and its MIG devices as the driver describes them."""

    gpu: HardwareGpu
    devices: tuple[mig_instance.MigDevice, ...] = ()


DiscoveredGpus = Mapping[str, DiscoveredGpu]  # by UUID


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
        most_mps_clients=mps_clients.most(gpu.compute_capability),
        compute_mode=driver.compute_mode(gpu.uuid),
        memory_is_known=gpu.memory_bytes > 0,
    )
    return DiscoveredGpu(hardware, devices)


def device_nodes(
    minors: Mapping[str, int],
    *,
    roots: Sequence[Path] = _ROOTS,
    parts: Collection[tuple[str, str, int, int]] = (),
) -> answer.DevicePaths:
    """The nodes that there are.

    minors: of each GPU by UUID the number of its node; roots: where /dev and /proc are, this container's own and the
    host's, as an agent that needs no CUDA has not all of its nodes; parts: MIG devices, as UUID, UUID of the GPU, and
    the numbers of the two instances.
    """
    control = tuple(path for path in answer.CONTROL_NODES if any((root / path.lstrip("/")).exists() for root in roots))
    of_device: dict[str, tuple[str, ...]] = {uuid: (f"/dev/nvidia{minor}",) for uuid, minor in minors.items()}
    capabilities: dict[str, int] = {}
    for root in roots if parts else ():
        capabilities |= _capabilities(root / "proc/driver/nvidia-caps/mig-minors")
    for uuid, gpu, instance, part in parts:
        if gpu not in minors:
            continue
        names = (f"gpu{minors[gpu]}/gi{instance}/access", f"gpu{minors[gpu]}/gi{instance}/ci{part}/access")
        caps = tuple(f"/dev/nvidia-caps/nvidia-cap{capabilities[name]}" for name in names if name in capabilities)
        of_device[uuid] = (f"/dev/nvidia{minors[gpu]}", *caps)
    return answer.DevicePaths(of_device, control)


def _capabilities(path: Path) -> dict[str, int]:
    """The number of each capability's node, from the driver's list of lines such as `gpu0/gi1/access 21`."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(number) for name, _, number in (line.partition(" ") for line in lines) if number.isdigit()}
