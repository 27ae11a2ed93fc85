"""What the labels of a node say, asked of the driver and the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from deviceplugin.hardware import nvml, nvml_call, nvml_mig, nvml_topology, pci
from deviceplugin.hardware.discovery import DiscoveredGpu
from deviceplugin.labels import gpu_resources, whole
from gpushare.gpu import Gpu, Mode
from gpushare.modes.assignment import Assignment

_MIB = 1 << 20
_SHARED = {Mode.MPS: "mps", Mode.TIME_SLICING: "time-slicing"}


def facts(
    opened: nvml.Nvml,
    gpus: Iterable[Gpu],
    discovered: Mapping[str, DiscoveredGpu],
    *,
    machine_type_file: str,
    sys_root: Path = Path("/sys"),
) -> whole.NodeFacts:
    """The facts of this node. Raises NvmlError; a GPU that does not answer is as it was last seen."""
    system = opened.system()
    driver = nvml_mig.MigDriver(opened)
    known = [gpu for gpu in gpus if gpu.uuid in discovered]
    return whole.NodeFacts(
        driver_version=system.driver_version,
        cuda_version=system.cuda_version,
        machine=_text(Path(machine_type_file)),
        gpus=tuple(_gpu(driver, gpu, discovered[gpu.uuid]) for gpu in known),
        pci_classes=tuple(number for gpu in known if (number := _pci_class(sys_root, gpu.pci_bus_id)) is not None),
        mig_capable=tuple(discovered[gpu.uuid].gpu.mig_capable for gpu in known),
        cliques=tuple(nvml_topology.clique(gpu.uuid) for gpu in known),
        virtual=tuple(opened.is_virtual(gpu.uuid) for gpu in known),
    )


def sharing(in_force: Mapping[str, Assignment | None]) -> gpu_resources.LabelledSharing:
    """How resources are shared, as a node has one way for each; MPS goes before time-slicing where there are both."""
    replications: dict[str, tuple[Mode, gpu_resources.Replication]] = {}
    for assignment in in_force.values():
        if assignment is None:
            continue
        entries = [
            (resource.mode, resource.resource, resource.replicas, resource.advertised) for resource in assignment.shared
        ]
        if assignment.mode in _SHARED:
            entries.append((assignment.mode, gpu_resources.GPU, assignment.replicas, assignment.resource))
        for mode, resource, replicas, advertised in entries:
            if replicas > 1 and (resource not in replications or mode is Mode.MPS):
                replications[resource] = (mode, gpu_resources.Replication(resource, replicas, advertised))
    modes = {mode for mode, _ in replications.values()}
    kind = next((word for mode, word in _SHARED.items() if mode in modes), "none")
    return gpu_resources.LabelledSharing(kind, tuple(replication for _, replication in replications.values()))


def _gpu(driver: nvml_mig.MigDriver, gpu: Gpu, discovered: DiscoveredGpu) -> gpu_resources.LabelledGpu:
    try:
        total_bytes = driver.model(gpu.uuid)[1]
    except nvml_call.NvmlError:
        total_bytes = gpu.memory_bytes
    devices = tuple(
        gpu_resources.LabelledMigDevice(
            profile=str(device.profile),
            memory_mib=device.memory_bytes // _MIB,
            gi_slices=device.profile.gpu_slices,
            ci_slices=device.profile.compute_slices,
            multiprocessors=device.multiprocessors,
            engines=device.engines,
        )
        for device in discovered.devices
    )
    return gpu_resources.LabelledGpu(
        gpu.model, total_bytes // _MIB, gpu.compute_capability, discovered.gpu.mig_enabled, devices
    )


def _pci_class(sys_root: Path, bus_id: str) -> int | None:
    try:
        return int(_text(sys_root / "bus/pci/devices" / pci.kernel_address(bus_id) / "class"), 16)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
