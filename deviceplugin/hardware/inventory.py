"""Which GPUs the node has, how configurations see them, and their device nodes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from deviceplugin.allocation import answer
from deviceplugin.hardware import nvml, nvml_call, nvml_mig
from deviceplugin.state import node_state
from deviceplugin.state.node_state import Unreadable
from gpushare.gpunode import Gpu
from gpushare.modes import hardware_gpu
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice


def merge(
    previous: Iterable[Gpu], seen: nvml.NvmlSnapshot, *, faults: Mapping[str, str], held: Collection[str]
) -> tuple[Gpu, ...]:
    """Return the node's GPUs, by index.

    previous: the known GPUs. A lost GPU does not report its UUID, so it is the known one with the same index. faults:
    why GPUs are unhealthy, by UUID. held: UUIDs that allocations use. A GPU that the driver no longer lists stays,
    unhealthy, while it is held, so that its users can see why.
    """
    gpus = {
        gpu.uuid: _unhealthy(gpu, faults[gpu.uuid]) if gpu.healthy and gpu.uuid in faults else gpu for gpu in seen.gpus
    }
    unreadable = {gpu.index: gpu.reason for gpu in seen.unreadable if not gpu.bus_id}
    for gpu in previous:
        if gpu.uuid in gpus:
            continue
        if gpu.index in unreadable:
            gpus[gpu.uuid] = _unhealthy(gpu, f"it does not answer: {unreadable[gpu.index]}")
        elif gpu.uuid in held:
            gpus[gpu.uuid] = _unhealthy(gpu, "the driver no longer lists it")
    return tuple(sorted(gpus.values(), key=lambda gpu: (gpu.index, gpu.uuid)))


def unidentified(gpus: Iterable[Gpu], seen: nvml.NvmlSnapshot) -> tuple[Unreadable, ...]:
    """Return the unreadable GPUs that match none of `gpus`: they have no UUID and were unknown before."""
    known = {key for gpu in gpus for key in (gpu.index, nvml_call.kernel_address(gpu.pci_bus_id))}
    return tuple(gpu for gpu in seen.unreadable if (gpu.bus_id or gpu.index) not in known)


def mark_silent(gpus: Iterable[Gpu], *, seconds: float) -> tuple[Gpu, ...]:
    """Return the GPUs as unhealthy, because the driver has not answered for so long."""
    why = f"the driver has not answered for {seconds:.0f} s: see the kernel's log for NVRM, and reboot if this persists"
    return tuple(_unhealthy(gpu, why) if gpu.healthy else gpu for gpu in gpus)


def _unhealthy(gpu: Gpu, reason: str) -> Gpu:
    return dataclasses.replace(gpu, healthy=False, health_reason=reason)


@dataclasses.dataclass(frozen=True, slots=True)
class DiscoveredGpu:
    """A GPU and the driver's description of its MIG devices."""

    gpu: HardwareGpu
    devices: tuple[node_state.MigDevice, ...] = ()


DiscoveredGpus = Mapping[str, DiscoveredGpu]  # by UUID


def discover(opened: nvml.Nvml, gpus: Iterable[Gpu], known: DiscoveredGpus) -> DiscoveredGpus:
    """Describe these GPUs. A GPU that does not answer keeps its `known` description, or counts as a GPU without MIG."""
    driver = nvml_mig.MigDriver(opened)
    discovered = {}
    for gpu in gpus:
        hardware = HardwareGpu(gpu.uuid, gpu.index, gpu.model, memory_is_known=gpu.memory_bytes > 0)
        try:
            mode = driver.mig_mode(gpu.uuid)
            enabled = mode is not None and mode.current
            devices = driver.mig_devices(gpu.uuid) if enabled else ()
            described = dataclasses.replace(
                hardware,
                mig_capable=mode is not None,
                mig_enabled=enabled,
                mig_devices=tuple(HardwareMigDevice(made.uuid, made.index, str(made.profile)) for made in devices),
                hardware=opened.device_id(gpu.uuid) if mode is not None else None,
                geometry=driver.mig_geometry(gpu.uuid) if mode is not None else None,
                most_mps_clients=hardware_gpu.max_mps_clients(gpu.compute_capability),
                can_partition=hardware_gpu.has_sm_partitions(gpu.compute_capability, opened.versions()[1]),
                compute_mode=driver.compute_mode(gpu.uuid),
            )
            discovered[gpu.uuid] = DiscoveredGpu(described, devices)
        except nvml_call.NvmlError:
            discovered[gpu.uuid] = known.get(gpu.uuid) or DiscoveredGpu(hardware)
    return discovered


def device_nodes(
    minors: Mapping[str, int], *, roots: Sequence[Path], parts: Collection[tuple[str, str, int, int]]
) -> answer.DevicePaths:
    """Return the device nodes that exist on this host.

    minors: each GPU's device minor number, by UUID. roots: where /dev and /proc are: this container's own root and the
    host's, because an agent that needs no CUDA lacks some of the nodes. parts: MIG devices as UUID, UUID of the GPU,
    and the ids of GPU instance and compute instance.
    """
    control = tuple(path for path in answer.CONTROL_NODES if any((root / path.lstrip("/")).exists() for root in roots))
    of_device: dict[str, tuple[str, ...]] = {uuid: (f"/dev/nvidia{minor}",) for uuid, minor in minors.items()}
    capabilities: dict[str, int] = {}
    for root in roots if parts else ():
        with contextlib.suppress(OSError):
            text = (root / "proc/driver/nvidia-caps/mig-minors").read_text()  # lines such as `gpu0/gi1/access 21`
            words = (line.partition(" ") for line in text.splitlines())
            capabilities |= {name: int(number) for name, _, number in words if number.isdigit()}
    for uuid, gpu, instance, part in parts:
        if gpu not in minors:
            continue
        names = (f"gpu{minors[gpu]}/gi{instance}/access", f"gpu{minors[gpu]}/gi{instance}/ci{part}/access")
        caps = tuple(f"/dev/nvidia-caps/nvidia-cap{capabilities[name]}" for name in names if name in capabilities)
        of_device[uuid] = (f"/dev/nvidia{minors[gpu]}", *caps)
    return answer.DevicePaths(of_device, control)
