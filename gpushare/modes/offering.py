"""The devices of each resource, from the assignments in force: advertised to the kubelet, and the basis of Allocate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from gpushare.config.model import Devices
from gpushare.gpu import Mode
from gpushare.modes import naming, sharing
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu, WholeDevice, whole
from gpushare.modes.sharing import SharedResource


@dataclasses.dataclass(frozen=True, slots=True)
class Offered:
    """One ID that the kubelet may give to a container.

    device: UUID of the GPU or MIG device; gpu: UUID of the GPU; index: `0` or `0:1`; mode: of the GPU. replicas: how
    many IDs the device has; alone: a container may have only this one.
    """

    id: str
    device: str
    gpu: str
    index: str
    mode: Mode
    replicas: int = 1
    alone: bool = False

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG device, which is isolated from the others."""
        return self.device != self.gpu

    @property
    def stands_alone(self) -> bool:
        """Whether a container may have only one device of its resource."""
        return self.alone and self.replicas > 1


Offer = dict[str, tuple[Offered, ...]]


def offer(gpus: Iterable[HardwareGpu], assignments: Mapping[str, Assignment]) -> Offer:
    """Return what these GPUs are offered as, by resource.

    GPUs without an assignment are not offered; nor are those in mode `fractional`, whose units are not devices.
    """
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
        resource = SharedResource(
            assignment.mode,
            assignment.resource,
            Devices(everything=True),
            assignment.resource,
            assignment.replicas,
            assignment.alone,
        )
        return {assignment.resource: _offered(whole(gpu), assignment.mode, resource)}
    named: dict[str, list[WholeDevice]] = {}
    if not gpu.mig_enabled:
        return {}  # it has lost its MIG devices, which is no reason to offer it whole
    for name, device in naming.named(gpu, strategy=assignment.strategy, rules=assignment.rules):
        named.setdefault(name, []).append(device)
    owners = sharing.claims(named, [_present(resource, named) for resource in assignment.shared])
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


def _offered(device: WholeDevice, mode: Mode, owner: SharedResource | None) -> list[Offered]:
    replicas, alone = (owner.replicas, owner.alone) if owner else (1, False)
    return [
        Offered(identity, device.uuid, device.gpu, device.index, mode, replicas, alone)
        for identity in sharing.identities(device.uuid, replicas)
    ]
