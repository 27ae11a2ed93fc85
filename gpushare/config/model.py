"""Config: one parsed configuration file. Absent values are None or empty here: `flags.effective` has the defaults."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final

from gpushare import errors
from gpushare.allocation import ONLY_ARBITER, Isolation
from gpushare.config import flags as flag_table
from gpushare.config import value_parsers
from gpushare.config.flags import FlagValue
from gpushare.mig import parted

Json = dict[str, Any]
VERSION: Final = "v1"


class ReplicaStrategy(enum.StrEnum):
    """How replicated devices are shared."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclasses.dataclass(frozen=True, slots=True)
class Devices:
    """A selection among a resource's devices: `everything`, the first `count` by index, or the `listed` ones."""

    everything: bool = False
    count: int | None = None
    listed: tuple[str, ...] | None = None  # GPU indices (`0`), MIG indices (`0:1`) and UUIDs, as text

    def __str__(self) -> str:
        if self.listed is not None:
            return ", ".join(self.listed) or "none"
        return "all" if self.count is None else f"the first {self.count}"

    def of(self, resource: str) -> str:
        """Return it in words: `all of nvidia.com/gpu`, `devices 0, 1 of nvidia.com/gpu`."""
        word = "" if not self.listed else "device " if len(self.listed) == 1 else "devices "
        return f"{word}{self} of {resource}"


ALL: Final = Devices(everything=True)


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicatedResource:
    """Devices that are each advertised `replicas` times, under the name `rename` if given."""

    name: str
    replicas: int
    devices: Devices = ALL
    rename: str | None = None
    interval: str = ""  # length of a time slice, for time-slicing: "", `default`, `short`, `medium` or `long`


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicatedResources:
    """`sharing.timeSlicing` or `sharing.mps`."""

    resources: tuple[ReplicatedResource, ...]
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None  # None: absent


@dataclasses.dataclass(frozen=True, slots=True)
class FractionalResource:
    """Devices that are shared by annotation, and so no longer devices of the resource `name`."""

    name: str
    devices: Devices = ALL
    isolations: tuple[Isolation, ...] = ONLY_ARBITER  # that their shares may have, as far as the GPU can
    sm_partitions: int = 0  # equal static SM partitions for shares with the isolation mps; 0: none


@dataclasses.dataclass(frozen=True, slots=True)
class Sharing:
    """The ways of sharing in the file; None if absent."""

    time_slicing: ReplicatedResources | None = None
    mps: ReplicatedResources | None = None
    fractional: tuple[FractionalResource, ...] = ()

    @property
    def strategy(self) -> ReplicaStrategy:
        """Return the node's single strategy, as NVIDIA's plugin and its labels have it."""
        for strategy, shared in ((ReplicaStrategy.MPS, self.mps), (ReplicaStrategy.TIME_SLICING, self.time_slicing)):
            if shared is not None and any(resource.replicas > 1 for resource in shared.resources):
                return strategy
        return ReplicaStrategy.NONE


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceRule:
    """A rule: devices whose model (or MIG profile) matches `pattern` belong to the resource `name`."""

    pattern: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """The administrator's resource names; empty means NVIDIA's."""

    gpus: tuple[ResourceRule, ...] = ()
    mig: tuple[ResourceRule, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Imex:
    """Channels of the inter-node memory exchange; None if unset."""

    channel_ids: tuple[int, ...] | None = None
    required: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Flags:
    """Flags that the file sets, by dotted key (`plugin.deviceListStrategy`); `flags.effective` has the others."""

    values: Mapping[str, FlagValue] = dataclasses.field(default_factory=dict)
    sections: frozenset[str] = frozenset()  # the nested objects (`plugin`, `gfd`) in the file, even if empty


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """One configuration. `warnings`: a sentence for each part of the file that has no effect."""

    version: str = VERSION
    flags: Flags = Flags()
    resources: Resources = Resources()
    sharing: Sharing = Sharing()
    imex: Imex = Imex()
    mig: (
        parted.Config | str
    ) = ()  # how to partition GPUs, () leaves them as they are; or the name of a generated config
    warnings: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def makes_mig_devices(self) -> bool:
        """Whether the configuration puts any GPU into MIG mode."""
        if isinstance(self.mig, str):
            return self.mig != parted.ALL_DISABLED
        return any(entry.enabled for entry in self.mig)


def as_document(config: Config) -> Json:
    """Return the whole file, without empty sections."""
    resources, sharing, imex = config.resources, config.sharing, config.imex
    rules = {"gpus": resources.gpus, "mig": resources.mig}
    shared = {
        "timeSlicing": replicated_document(sharing.time_slicing) if sharing.time_slicing is not None else None,
        "mps": replicated_document(sharing.mps) if sharing.mps is not None else None,
        "fractional": {"resources": [fractional_resource_document(each) for each in sharing.fractional]}
        if sharing.fractional
        else None,
    }
    channels = None if imex.channel_ids is None else list(imex.channel_ids)
    document = {
        "version": config.version,
        "flags": flags_document(config.flags) if config.flags != Flags() else None,
        "resources": {key: [*map(dataclasses.asdict, listed)] for key, listed in rules.items() if listed},
        "sharing": _set(shared),
        "imex": _set({"channelIDs": channels, "required": imex.required}),
        "mig": config.mig if isinstance(config.mig, str) else [*map(parted.written, config.mig)],
    }
    return {key: value for key, value in document.items() if value}


def _set(fields: Json) -> Json:
    return {key: value for key, value in fields.items() if value is not None}


def flags_document(flags: Flags) -> Json:
    """Return `flags` as NVIDIA's plugin prints them: unset ones are null, or left out if `omitted`."""
    written: Json = {}
    sections = flags.sections | {key.partition(".")[0] for key in flags.values}
    for flag in flag_table.IN_FILE:
        section, _, key = flag.key.rpartition(".")
        value = flags.values.get(flag.key)
        if (section and section not in sections) or (flag.omitted and value is None):
            continue
        if flag.kind is flag_table.FlagType.DURATION and isinstance(value, int):
            value = value_parsers.format_duration(value)
        into = written.setdefault(section, {}) if section else written
        into[key] = list(value) if isinstance(value, tuple) else value
    return written


def replicated_document(replicated_resources: ReplicatedResources) -> Json:
    """Return `sharing.timeSlicing` or `sharing.mps`."""
    return {
        "renameByDefault": replicated_resources.rename_by_default,
        "failRequestsGreaterThanOne": replicated_resources.fail_requests_greater_than_one,
        "resources": [replicated_resource_document(resource) for resource in replicated_resources.resources],
    }


def fractional_resource_document(resource: FractionalResource) -> Json:
    """Return one entry of `sharing.fractional.resources`."""
    document: Json = {"name": resource.name, "devices": devices_document(resource.devices)}
    if resource.isolations != ONLY_ARBITER:
        document["isolations"] = [*resource.isolations]
    if resource.sm_partitions:
        document["smPartitions"] = resource.sm_partitions
    return document


def replicated_resource_document(resource: ReplicatedResource) -> Json:
    """Return one entry of its `resources`."""
    interval = {"interval": resource.interval} if resource.interval else {}
    return {
        "name": resource.name,
        "rename": resource.rename,
        "devices": devices_document(resource.devices),
        "replicas": resource.replicas,
    } | interval


def devices_document(devices: Devices) -> str | int | list[str]:
    """Return `devices`. Raises ConfigError if none is selected."""
    if devices.listed is not None:
        return list(devices.listed)
    if devices.count is not None:
        return devices.count
    if devices != ALL:
        raise errors.ConfigError("devices are neither all, nor a count, nor a list")
    return "all"
