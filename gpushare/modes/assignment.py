"""Assignment: the use of one GPU, whether the GPU can be used so as it is, and the devices that it offers then.

Another program may have changed a GPU, or reset it: MIG devices do not survive that, nor does the MIG mode of newer
models. Equal assignments need no change of the GPU.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpushare.allocation import Isolation
from gpushare.config.model import Devices, Resources
from gpushare.gpunode import Mode
from gpushare.mig import profile
from gpushare.modes import device_resources
from gpushare.modes.device_resources import NO_RULES, SharedResource
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu, WholeDevice, whole


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """The MIG state wanted of a GPU: whether it is enabled, and how many devices of each profile, sorted by profile."""

    enabled: bool
    wanted: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        if not self.enabled:
            return "MIG off"
        return " + ".join(f"{count} × {name}" for name, count in self.wanted) or "no MIG devices"


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """The use of one GPU."""

    mode: Mode
    resource: str = ""  # it advertises the GPU; "" for `fractional`, whose resources are gpushare's own, and for `mig`
    replicas: int = 1  # this and the next two for `time-slicing` and `mps`, as in `SharedResource`
    alone: bool = False
    interval: str = ""
    partition: Partition | None = None  # the MIG state that this requires; None keeps the current one
    strategy: str = ""  # this and the rules for `mig`: the names of its MIG devices
    rules: Resources = NO_RULES
    shared: tuple[SharedResource, ...] = ()  # those of its MIG devices that are shared
    isolations: tuple[Isolation, ...] = dataclasses.field(default=(), compare=False)  # for `fractional`: of new shares
    sm_partitions: int = dataclasses.field(default=0, compare=False)  # likewise, for those with the isolation mps

    def __str__(self) -> str:
        words = [str(self.mode)]
        if self.resource:
            words.append(f"{self.replicas} × {self.resource}" if self.replicas > 1 else self.resource)
        if self.interval:
            words.append(f"{self.interval} time slices")
        if self.partition is not None:
            words.append(str(self.partition))
        words += [
            f"{resource.devices.of(resource.resource)} as {resource.replicas} × {resource.advertised} each"
            for resource in self.shared
        ]
        return ", ".join(words)


# In MIG mode a program can use only MIG devices, and only one of them, so several programs cannot share the GPU.
_WHOLE_GPU_MODES: Final = (Mode.FRACTIONAL, Mode.TIME_SLICING, Mode.MPS)
NO_MEMORY: Final = (
    "the driver does not report how much memory it has, so it cannot be shared by annotation: list it under "
    "`sharing.timeSlicing` or `sharing.mps`, or remove it from `sharing` to make it exclusive"
)
# The MPS server is the one process that has the GPU, and goes on if another program relaxes the compute mode.
_WITH_MPS: Final = (ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS)
_COMPUTE_MODES: Final = {
    ComputeMode.EXCLUSIVE_THREAD: "which allows one thread only",
    ComputeMode.EXCLUSIVE_PROCESS: "which allows one process only",
    ComputeMode.PROHIBITED: "which allows no process",
}


def compute_modes(assignment: Assignment) -> tuple[ComputeMode, ...]:
    """Return the compute modes that the GPU may have. Where every process is an MPS client, it may be exclusive."""
    only_mps = assignment.mode is Mode.FRACTIONAL and assignment.isolations == (Isolation.MPS,)
    return _WITH_MPS if only_mps or assignment.mode is Mode.MPS else (ComputeMode.DEFAULT,)


def contradiction(gpu: HardwareGpu, assignment: Assignment) -> str:
    """Return why the GPU, as it is, cannot be used as assigned, as a clause; empty if it can."""
    problem = _of_mig(gpu, assignment)
    if not problem and gpu.compute_mode not in compute_modes(assignment):
        problem = f"its compute mode is {gpu.compute_mode}, {_COMPUTE_MODES[gpu.compute_mode]}"
    return problem or (NO_MEMORY if lacks_memory(gpu, assignment) else "")


def is_permanent(gpu: HardwareGpu, assignment: Assignment) -> bool:
    """Whether the contradiction would remain after the GPU is set up: state that was not configured is not undone."""
    is_cut = gpu.mig_enabled and assignment.partition is None and assignment.mode in _WHOLE_GPU_MODES
    return is_cut or lacks_memory(gpu, assignment)


def lacks_memory(gpu: HardwareGpu, assignment: Assignment) -> bool:
    """Whether the GPU would take shares although its memory size is unknown."""
    return assignment.mode is Mode.FRACTIONAL and not gpu.memory_is_known


def _of_mig(gpu: HardwareGpu, assignment: Assignment) -> str:
    wanted = assignment.partition
    if wanted is not None and (gpu.mig_capable or wanted.enabled):
        # MIG without devices is for users who create their own.
        is_user_managed = wanted.enabled and not wanted.wanted and gpu.mig_enabled
        if not is_user_managed and not has_partition(gpu, wanted):
            return f"it has {_shown(gpu)}, but should have {wanted}"
    if gpu.mig_enabled and assignment.mode in _WHOLE_GPU_MODES:
        return (
            f"it is in MIG mode with {_shown(gpu)}, and a program can use only one of these: `mig: all-disabled` in "
            "the configuration turns MIG off, flags.migStrategy mixed offers its MIG devices"
        )
    if not gpu.mig_enabled and assignment.mode is Mode.MIG:
        return "it is not in MIG mode"
    return ""


def has_partition(gpu: HardwareGpu, wanted: Partition) -> bool:
    """Whether the GPU's MIG state is as `wanted`, by the profiles of its MIG devices."""
    if not (wanted.enabled and gpu.mig_enabled):
        return wanted.enabled is gpu.mig_enabled
    there = collections.Counter(str(profile.parse(mig_device.profile)) for mig_device in gpu.mig_devices)
    return there == dict(wanted.wanted)


def _shown(gpu: HardwareGpu) -> str:
    counts = collections.Counter(mig_device.profile for mig_device in gpu.mig_devices)
    return str(Partition(gpu.mig_enabled, tuple(sorted(counts.items()))))


@dataclasses.dataclass(frozen=True, slots=True)
class Offered:
    """One ID that the kubelet may give to a container."""

    id: str
    device: str  # UUID of the GPU or MIG device
    gpu: str  # UUID of the GPU
    index: str  # `0` or `0:1`
    mode: Mode  # of the GPU
    replicas: int = 1  # how many IDs the device has
    alone: bool = False  # a container may have only this one

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG device, which is isolated from the others."""
        return self.device != self.gpu

    @property
    def stands_alone(self) -> bool:
        """Whether a container may have only one device of its resource."""
        return self.alone and self.replicas > 1


DeviceOffer = dict[str, tuple[Offered, ...]]


def offer(gpus: Iterable[HardwareGpu], assignments: Mapping[str, Assignment]) -> DeviceOffer:
    """Return what these GPUs are offered as, by resource, except in mode `fractional`, whose units are no devices."""
    by_resource: dict[str, list[Offered]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        assignment = assignments.get(gpu.uuid)
        if assignment is None or assignment.mode is Mode.FRACTIONAL:
            continue
        for name, devices in _of_gpu(gpu, assignment).items():
            by_resource.setdefault(name, []).extend(devices)
    return {name: tuple(devices) for name, devices in by_resource.items()}


def _of_gpu(gpu: HardwareGpu, assignment: Assignment) -> dict[str, list[Offered]]:
    if assignment.mode is not Mode.MIG:
        return {assignment.resource: _offered(whole(gpu), assignment.mode, assignment)}
    if not gpu.mig_enabled:
        return {}  # it has lost its MIG devices, which is no reason to offer it whole
    named: dict[str, list[WholeDevice]] = {}
    for name, device in device_resources.named(gpu, strategy=assignment.strategy, rules=assignment.rules):
        named.setdefault(name, []).append(device)
    owners = device_resources.claims(named, [_present(resource, named) for resource in assignment.shared])
    by_resource: dict[str, list[Offered]] = {}
    for name, devices in named.items():
        for device in devices:
            owner = owners.get(device.uuid)
            by_resource.setdefault(owner.advertised if owner else name, []).extend(_offered(device, Mode.MIG, owner))
    return by_resource


def _present(resource: SharedResource, named: Mapping[str, Sequence[WholeDevice]]) -> SharedResource:
    """Return the entry for the devices that still exist: a MIG device may have been destroyed since the plan."""
    devices = named.get(resource.resource, ())
    if resource.devices.count is not None:
        return dataclasses.replace(resource, devices=Devices(count=min(resource.devices.count, len(devices))))
    if resource.devices.listed is not None:
        indices = {device.index for device in devices}
        listed = tuple(index for index in resource.devices.listed if index in indices)
        return dataclasses.replace(resource, devices=Devices(listed=listed))
    return resource


def _offered(device: WholeDevice, mode: Mode, owner: SharedResource | Assignment | None) -> list[Offered]:
    replicas, alone = (owner.replicas, owner.alone) if owner else (1, False)
    return [
        Offered(identity, device.uuid, device.gpu, device.index, mode, replicas, alone)
        for identity in device_resources.identities(device.uuid, replicas)
    ]
