"""Maps each device of a node to a resource, then to the entry of the configuration that shares it.

A device belongs to the entry that lists it; else to one with a count; else to one that takes all. If two take all, MPS
wins over time-slicing, as in NVIDIA's plugin, and both win over shares by annotation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpushare import errors
from gpushare.allocation import Isolation
from gpushare.config import value_parsers
from gpushare.config.model import Devices, ReplicatedResource, ResourceRule, Resources, Sharing
from gpushare.gpunode import Mode
from gpushare.mig import profile
from gpushare.modes.hardware_gpu import HardwareGpu, WholeDevice, parts, whole

STRATEGY_NONE: Final = "none"  # MIG is ignored
STRATEGY_SINGLE: Final = "single"  # all GPUs of the node are partitioned alike; their MIG devices are called GPUs
NO_RULES: Final = Resources()
REPLICA: Final = "::"  # between a device's UUID and the replica's number, from 0

Named = dict[str, tuple[WholeDevice, ...]]


def by_resource(gpus: Sequence[HardwareGpu], *, strategy: str, rules: Resources = NO_RULES) -> Named:
    """Return the devices of each resource, by index. Raises ConfigError if the strategy forbids the node's devices."""
    by_name: dict[str, list[WholeDevice]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        for name, device in named(gpu, strategy=strategy, rules=rules):
            by_name.setdefault(name, []).append(device)
    with_mig = [gpu for gpu in gpus if gpu.mig_enabled]
    if strategy == STRATEGY_SINGLE and with_mig:
        empty = next((gpu for gpu in with_mig if not gpu.mig_devices), None)
        if empty is not None:
            raise errors.ConfigError(
                "at least one device with migEnabled=true was not configured correctly: "
                f"device {empty.index} has no MIG devices configured, as MIG strategy single needs"
            )
        if len(with_mig) < len(gpus):
            raise errors.ConfigError(
                "all devices on the node must be configured with the same migEnabled value under MIG strategy single: "
                "write mixed"
            )
        kinds = sorted({mig_device.profile for gpu in with_mig for mig_device in gpu.mig_devices})
        if len(kinds) > 1:
            there = ", ".join(kinds)
            raise errors.ConfigError(
                f"more than one MIG device type present on node ({there}) under MIG strategy single: write mixed"
            )
    return {name: tuple(devices) for name, devices in by_name.items()}


def named(gpu: HardwareGpu, *, strategy: str, rules: Resources = NO_RULES) -> tuple[tuple[str, WholeDevice], ...]:
    """Return the devices of one GPU, each after its resource: the GPU, or its MIG devices in MIG mode."""
    if gpu.mig_enabled and strategy != STRATEGY_NONE:
        return tuple((mig_resource(kind, strategy, rules), device) for kind, device in parts(gpu))
    name = _first(rules.gpus, gpu.model) or value_parsers.GPU_RESOURCE
    return ((name, whole(gpu)),)


def mig_resource(kind: str, strategy: str, rules: Resources = NO_RULES) -> str:
    """Return the resource of MIG devices of that profile. Raises ConfigError if there is none."""
    name = _first(rules.mig, kind)
    if name is not None or strategy == STRATEGY_SINGLE:
        return name or value_parsers.GPU_RESOURCE
    try:
        name = profile.parse(kind).resource
    except profile.ProfileError as error:
        raise errors.ConfigError(str(error)) from error
    if name is None:
        raise errors.ConfigError(
            f"MIG profile '{kind}' does not match any resource patterns: "
            "it is a part of a GPU instance, so give it a name under resources.mig"
        )
    return name


def _first(rules: Sequence[ResourceRule], text: str) -> str | None:
    return next((rule.name for rule in rules if value_parsers.matches(rule.pattern, text)), None)


@dataclasses.dataclass(frozen=True, slots=True)
class SharedResource:
    """One entry of `sharing`."""

    mode: Mode
    resource: str
    devices: Devices
    advertised: str
    replicas: int = 1
    alone: bool = False  # a container may request only one
    interval: str = ""  # length of a time slice, "" for the driver's
    path: str = dataclasses.field(default="", compare=False)  # its place in the file
    isolations: tuple[Isolation, ...] = ()  # this and the next for `fractional`, as in `FractionalResource`
    sm_partitions: int = 0


def shared_resources(sharing: Sharing) -> tuple[SharedResource, ...]:
    """Return all entries of a configuration, in order of precedence."""
    resources: list[SharedResource] = []
    for mode, path, shared in (
        (Mode.MPS, "sharing.mps", sharing.mps),
        (Mode.TIME_SLICING, "sharing.timeSlicing", sharing.time_slicing),
    ):
        if shared is not None:
            alone = bool(shared.fail_requests_greater_than_one)
            resources += [
                replicated(resource, mode, alone=alone, path=f"{path}.resources[{index}]")
                for index, resource in enumerate(shared.resources)
            ]
    for index, entry in enumerate(sharing.fractional):
        path = f"sharing.fractional.resources[{index}]"
        resources.append(
            SharedResource(
                Mode.FRACTIONAL,
                entry.name,
                entry.devices,
                "",
                path=path,
                isolations=entry.isolations,
                sm_partitions=entry.sm_partitions,
            )
        )
    return tuple(resources)


def replicated(resource: ReplicatedResource, mode: Mode, *, alone: bool = False, path: str = "") -> SharedResource:
    """Return an entry of time-slicing or MPS."""
    advertised = resource.rename or resource.name
    amounts = resource.replicas, alone, resource.interval
    return SharedResource(mode, resource.name, resource.devices, advertised, *amounts, path)


def claims(
    resources: Mapping[str, Sequence[WholeDevice]], shared: Sequence[SharedResource], warnings: list[str] | None = None
) -> dict[str, SharedResource]:
    """Return the entry of each shared device, by UUID; other devices are not shared.

    Resources that the node lacks are skipped. Raises ConfigError for a device that does not exist, that two entries
    list, or a count above what is left.
    """
    owners: dict[str, SharedResource] = {}
    by_specificity = sorted(shared, key=lambda entry: (entry.devices.listed is None, entry.devices.count is None))
    for resource in by_specificity:
        devices = resources.get(resource.resource, ())
        is_listed = resource.devices.listed is not None
        free = [device for device in devices if is_listed or device.uuid not in owners]
        taken = chosen(free, resource.devices) if devices else ()
        for device in taken:
            if device.uuid in owners:
                other = owners[device.uuid]
                raise errors.ConfigError(
                    f"{resource.path or resource.resource} names the device {device.index} ({device.uuid}), "
                    f"and so does {other.path or other.resource}: name it once"
                )
        if not taken and warnings is not None:
            if not devices:
                why = f"this node has no {resource.resource}; it has {', '.join(sorted(resources)) or 'no GPU'}"
            elif resource.devices.listed == ():
                why = "its list of devices is empty"
            else:
                why = f"other entries claim every device of {resource.resource}"
            warnings.append(f"{resource.path} has no effect: {why}")
        owners |= {device.uuid: resource for device in taken}
    return owners


def shadowed(shared: Sequence[SharedResource]) -> dict[str, str]:
    """Return sentences by path about entries for all devices of a resource that another entry takes on any node."""
    first: dict[str, SharedResource] = {}
    sentences = {}
    for resource in shared:
        if resource.devices.everything:
            owner = first.setdefault(resource.resource, resource)
            if owner is not resource:
                sentences[resource.path] = (
                    f"{resource.path} has no effect: {owner.path} claims all devices of {resource.resource} that no "
                    "other entry names"
                )
    return sentences


def chosen(devices: Sequence[WholeDevice], wanted: Devices) -> tuple[WholeDevice, ...]:
    """Return those of `devices` that are `wanted`, by index. Raises ConfigError if any is missing."""
    ordered = sorted(devices, key=lambda device: device.order)
    if wanted.count is not None:
        if wanted.count > len(ordered):
            raise errors.ConfigError(
                f"requested {wanted.count} devices to be replicated, but only {len(ordered)} devices available"
            )
        return tuple(ordered[: wanted.count])
    if wanted.listed is None:
        return tuple(ordered)
    uuids = {_find(ordered, reference).uuid for reference in wanted.listed}
    return tuple(device for device in ordered if device.uuid in uuids)


def _find(devices: Iterable[WholeDevice], reference: str) -> WholeDevice:
    by_uuid = value_parsers.reference_kind(reference) is value_parsers.ReferenceKind.UUID
    wanted = reference if by_uuid else ":".join(str(int(part)) for part in reference.split(":"))
    for device in devices:
        if (device.uuid if by_uuid else device.index) == wanted:
            return device
    known = ", ".join(f"{device.index} ({device.uuid})" for device in devices)
    what = "with UUID" if by_uuid else "at index"
    raise errors.ConfigError(f"no matching device {what}: {reference}; the node has {known}")


def identities(uuid: str, replicas: int) -> tuple[str, ...]:
    """Return the IDs under which a device is advertised: its UUID, or `replicas` numbered ones."""
    return (uuid,) if replicas <= 1 else tuple(f"{uuid}{REPLICA}{number}" for number in range(replicas))


def device_of(identity: str) -> str:
    """Return the UUID in a device ID."""
    return identity.partition(REPLICA)[0]


def is_replica(identity: str) -> bool:
    """Whether a device ID is one of several for its device."""
    return REPLICA in identity
