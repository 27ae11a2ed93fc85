"""Plans the assignment of each GPU of a node. All errors of the configuration are found before any GPU changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gpushare import errors
from gpushare.config.config_file import MAX_DEVICES
from gpushare.config.model import Config, Devices, Resources
from gpushare.gpunode import Mode
from gpushare.mig import instance_layout, parted
from gpushare.modes import device_resources
from gpushare.modes.assignment import NO_MEMORY, Assignment, Partition, has_partition, lacks_memory
from gpushare.modes.device_resources import SharedResource
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice, parts, whole

_SHOWN: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class ModePlan:
    """The assignment of each GPU, by UUID."""

    assignments: Mapping[str, Assignment]
    warnings: tuple[str, ...] = ()  # sentences about parts of the configuration without effect on this node


def plan(
    config: Config, gpus: Sequence[HardwareGpu], *, mig_strategy: str = device_resources.STRATEGY_NONE
) -> ModePlan:
    """Return the assignments of these GPUs under `config`, or raise ConfigError; `mig_strategy`: the effective one."""
    if mig_strategy == device_resources.STRATEGY_NONE and config.makes_mig_devices:
        raise errors.ConfigError("mig creates MIG devices, which flags.migStrategy none hides: write single or mixed")
    entries = _entries(config, gpus)
    partitions = {gpu.uuid: _partition(entries[gpu.uuid], gpu) for gpu in gpus}
    become = [_partitioned(gpu, partitions[gpu.uuid]) for gpu in gpus]
    resources = device_resources.by_resource(become, strategy=mig_strategy, rules=config.resources)
    warnings: list[str] = []
    owners = device_resources.claims(resources, device_resources.shared_resources(config.sharing), warnings)
    _check_count(resources, owners)
    assignments = {}
    for gpu in become:
        partition = partitions[gpu.uuid]
        if gpu.mig_enabled and mig_strategy != device_resources.STRATEGY_NONE:
            assignment = _of_mig(gpu, owners, mig_strategy, config.resources)
        else:
            assignment = _of_whole(gpu, owners, config.resources)
            # GPUs that we have partitioned for an earlier configuration are made whole again
            if partition is None and gpu.ours:
                partition = Partition(enabled=False)
        assignments[gpu.uuid] = dataclasses.replace(assignment, partition=partition)
    for name, devices in resources.items():
        shares = {(owner.advertised, owner.replicas) for device in devices if (owner := owners.get(device.uuid))}
        is_whole = any(device.uuid not in owners for device in devices)
        sizes = {replicas for _, replicas in shares}
        if any(advertised == name for advertised, _ in shares) and (len(sizes) > 1 or is_whole):
            warnings.append(
                f"{name} would mean both whole devices and shares of them on this node, or shares of different "
                "sizes: give the shared ones another name with rename"
            )
    warnings += () if isinstance(config.mig, str) else _without_effect(config.mig, gpus)
    warnings += [
        f"GPU {gpu.index} ({gpu.model}) takes no shares: {NO_MEMORY}"
        for gpu in become
        if lacks_memory(gpu, assignments[gpu.uuid])
    ]
    return ModePlan(assignments, tuple(warnings))


def _check_count(resources: device_resources.Named, owners: Mapping[str, SharedResource]) -> None:
    whole_count = sum(device.uuid not in owners for devices in resources.values() for device in devices)
    count = whole_count + sum(owner.replicas for owner in owners.values())
    if count > MAX_DEVICES:
        most = max(owners.values(), key=lambda owner: owner.replicas)
        said = f"the node would have {count} devices, but a kubelet accepts at most {MAX_DEVICES}: write fewer replicas"
        raise errors.ConfigError(f"{most.path}.replicas {most.replicas}: {said}")


def _of_whole(gpu: HardwareGpu, owners: Mapping[str, SharedResource], rules: Resources) -> Assignment:
    owner = owners.get(whole(gpu).uuid)
    if owner is None:
        ((name, _),) = device_resources.named(gpu, strategy=device_resources.STRATEGY_NONE, rules=rules)
        return Assignment(Mode.EXCLUSIVE, name)
    most = gpu.most_mps_clients
    if owner.mode is Mode.MPS and most is not None and owner.replicas > most:
        said = f"at most {most} processes can share GPU {gpu.index} ({gpu.model}) by MPS"
        raise errors.ConfigError(f"{owner.path}.replicas {owner.replicas}: maximum allowed replicas exceeded: {said}")
    return Assignment(
        owner.mode,
        owner.advertised,
        owner.replicas,
        owner.alone,
        owner.interval,
        isolations=owner.isolations,
        sm_partitions=owner.sm_partitions,
    )


def _of_mig(gpu: HardwareGpu, owners: Mapping[str, SharedResource], strategy: str, rules: Resources) -> Assignment:
    own: dict[SharedResource, list[str]] = {}
    for _, device in parts(gpu):
        owner = owners.get(device.uuid)
        if owner is None:
            continue
        if owner.mode is not Mode.TIME_SLICING:
            word = "MPS" if owner.mode is Mode.MPS else "annotations"
            raise errors.ConfigError(
                f"{owner.path}: sharing using {word} is not supported for MIG devices, such as {device.index} "
                f"({device.uuid}): list the devices it applies to"
            )
        if owner.interval:
            raise errors.ConfigError(
                f"{owner.path}.interval: the driver supports time slices on whole GPUs only, and {device.index} "
                f"({device.uuid}) is a MIG device: remove the interval"
            )
        own.setdefault(owner, []).append(device.index)

    def there(devices: Devices, indices: Sequence[str]) -> Devices:
        """Return the part on this GPU: a count means its first ones, because one over all GPUs would not be stable."""
        if devices.count is not None:
            return Devices(count=len(indices))
        return devices if devices.listed is None else Devices(listed=tuple(indices))

    return Assignment(
        Mode.MIG,
        strategy=strategy,
        rules=Resources(mig=rules.mig),
        shared=tuple(dataclasses.replace(owner, devices=there(owner.devices, own[owner])) for owner in own),
    )


def _entries(config: Config, gpus: Sequence[HardwareGpu]) -> Mapping[str, parted.Config]:
    """Return the entries about each GPU. A name means on each model what fits there; at least one GPU must know it."""
    if not isinstance(config.mig, str):
        return {gpu.uuid: config.mig for gpu in gpus}
    known: dict[str, Mapping[str, parted.Config]] = {}
    for gpu in gpus:
        if gpu.mig_capable:
            kinds = gpu.geometry.kinds if gpu.geometry is not None else ()
            model = parted.MigModel(gpu.model, {kind.profile: kind.most for kind in kinds})
            known[gpu.uuid] = parted.generated_configs([model])
    if config.mig != parted.ALL_DISABLED and not any(config.mig in configs for configs in known.values()):
        names = sorted({name for configs in known.values() for name in configs})
        there = f"write {', '.join(names)}" if names else "none of them supports MIG"
        raise errors.ConfigError(f"mig is {config.mig}, which no GPU of this node supports: {there}")
    return {gpu.uuid: known.get(gpu.uuid, {}).get(config.mig, ()) for gpu in gpus}


def _partition(entries: parted.Config, gpu: HardwareGpu) -> Partition | None:
    """Return the MIG state by the last entry about the GPU."""
    partition = None
    for number, entry in enumerate(entries):
        if not entry.applies_to(index=gpu.index, hardware=gpu.hardware):
            continue
        if not gpu.mig_capable:
            if entry.devices is not None and entry.enabled:
                said = f"mig[{number}] names GPU {gpu.index} ({gpu.model}), which does not support MIG"
                raise errors.ConfigError(said)
            continue
        if entry.enabled and gpu.geometry is not None:
            reason = instance_layout.config_error(gpu.geometry, entry.wanted)
            if reason is not None:
                raise errors.ConfigError(f"mig[{number}] cannot be applied to GPU {gpu.index}: {reason}")
        counts = instance_layout.named(entry.wanted)
        partition = Partition(entry.enabled, tuple(sorted((str(kind), count) for kind, count in counts.items())))
    return partition


def _without_effect(entries: parted.Config, gpus: Sequence[HardwareGpu]) -> Iterator[str]:
    """Return sentences about entries of `mig` that change nothing on this node.

    A list may name the models of all nodes by device-filters, so an entry is a mistake only if no GPU here matches any.
    """
    present = {gpu.index for gpu in gpus}
    passed = [[gpu for gpu in gpus if entry.applies_to(index=gpu.index, hardware=gpu.hardware)] for entry in entries]
    last = {gpu.uuid: number for number, found in enumerate(passed) for gpu in found}
    is_filtered = any(found and entry.filters for entry, found in zip(entries, passed, strict=True))
    for number, (entry, found) in enumerate(zip(entries, passed, strict=True)):
        missing = [index for index in dict.fromkeys(entry.devices or ()) if index not in present]
        unknown = entry.filters and any(gpu.mig_capable and gpu.hardware is None for gpu in gpus)
        if unknown:
            yield f"mig[{number}] is skipped: the PCI numbers that its device-filter needs are unknown on this node"
        elif not found and entry.filters and is_filtered:
            continue
        elif missing:
            there = _short_list(sorted(present))
            yield f"mig[{number}] names GPU {_short_list(missing)}, which this node lacks: it has {there}"
        elif not found:
            why = "its device-filter matches no GPU of this node" if entry.filters else "its list of devices is empty"
            yield f"mig[{number}] has no effect: {why}"
        elif entry.enabled and not any(gpu.mig_capable for gpu in found):
            yield f"mig[{number}] has no effect: none of its GPUs supports MIG"
        elif all(last[gpu.uuid] != number for gpu in found):
            yield f"mig[{number}] has no effect: later entries apply to the same GPUs"


def _short_list(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return (", ".join(map(str, numbers[:_SHOWN])) or "none") + more


def _partitioned(gpu: HardwareGpu, partition: Partition | None) -> HardwareGpu:
    if partition is None:
        return gpu
    if not partition.enabled:
        return dataclasses.replace(gpu, mig_enabled=False, mig_devices=())
    if has_partition(gpu, partition):
        return gpu
    kinds = [name for name, count in partition.wanted for _ in range(count)]
    devices = tuple(HardwareMigDevice(f"MIG {index} of {gpu.uuid}", index, kind) for index, kind in enumerate(kinds))
    return dataclasses.replace(gpu, mig_enabled=True, mig_devices=devices)
