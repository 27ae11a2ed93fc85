"""Config: one parsed configuration file. Absent values are None or empty here: `flags.effective` has the defaults."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from gpushare import errors
from gpushare.config import flags as flag_table
from gpushare.config import value_parsers
from gpushare.mig import parted

VERSION: Final = "v1"

FlagValue: TypeAlias = bool | int | str | tuple[str, ...] | tuple[int, ...]


class ReplicaStrategy(enum.StrEnum):
    """How replicated devices are shared."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclasses.dataclass(frozen=True, slots=True)
class Devices:
    """A selection among a resource's devices: `everything`, the first `count` by index, or the `listed` ones.

    listed: GPU indices (`0`), MIG indices (`0:1`) and UUIDs (`GPU-…`, `MIG-…`), as text.
    """

    everything: bool = False
    count: int | None = None
    listed: tuple[str, ...] | None = None

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
    """Devices that are each advertised `replicas` times, under the name `rename` if given.

    interval: length of a time slice: "", `default`, `short`, `medium` or `long`; for time-slicing only.
    """

    name: str
    replicas: int
    devices: Devices = ALL
    rename: str | None = None
    interval: str = ""


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
    """Flags that the file sets, by dotted key (`plugin.deviceListStrategy`); `flags.effective` has the others.

    sections: the nested objects (`plugin`, `gfd`) in the file, even if empty.
    """

    values: Mapping[str, FlagValue] = dataclasses.field(default_factory=dict)
    sections: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """One configuration. `warnings`: a sentence for each part of the file that has no effect."""

    version: str = VERSION
    flags: Flags = Flags()
    resources: Resources = Resources()
    sharing: Sharing = Sharing()
    imex: Imex = Imex()
    mig: parted.Config | str = ()  # how to partition GPUs, () leaves them as they are; or a name of `mig.generation`
    warnings: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def makes_mig_devices(self) -> bool:
        """Whether the configuration puts any GPU into MIG mode."""
        if isinstance(self.mig, str):
            return self.mig != parted.ALL_DISABLED
        return any(entry.enabled for entry in self.mig)


Json = dict[str, Any]


def as_document(config: Config) -> Json:
    """Return the whole file, without empty sections."""
    document: Json = {"version": config.version}
    if config.flags != Flags():
        document["flags"] = flags_document(config.flags)
    rules = {"gpus": config.resources.gpus, "mig": config.resources.mig}
    if any(rules.values()):
        document["resources"] = {
            key: [_rule(resource_rule) for resource_rule in value] for key, value in rules.items() if value
        }
    if config.sharing != Sharing():
        document["sharing"] = sharing_document(config.sharing)
    if config.imex != Imex():
        document["imex"] = imex_document(config.imex)
    if config.mig:
        document["mig"] = config.mig if isinstance(config.mig, str) else [parted.written(entry) for entry in config.mig]
    return document


def flags_document(flags: Flags) -> Json:
    """Return `flags` as NVIDIA's plugin prints them: unset ones are null, or left out if `omitted`."""
    written = _section(flags, "")
    for section in flag_table.SECTIONS:
        if section in flags.sections or any(key.startswith(f"{section}.") for key in flags.values):
            written[section] = _section(flags, f"{section}.")
    return written


def _section(flags: Flags, prefix: str) -> Json:
    return {
        flag.key.removeprefix(prefix): _flag(flag, flags.values.get(flag.key))
        for flag in flag_table.IN_FILE
        if flag.key.rpartition(".")[0] == prefix.rstrip(".") and not (flag.omitted and flag.key not in flags.values)
    }


def _flag(flag: flag_table.Flag, value: FlagValue | None) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if flag.kind is flag_table.FlagType.DURATION and isinstance(value, int):
        return value_parsers.format_duration(value)
    return value


def sharing_document(sharing: Sharing) -> Json:
    """Return `sharing`."""
    written: Json = {}
    if sharing.time_slicing is not None:
        written["timeSlicing"] = replicated_document(sharing.time_slicing)
    if sharing.mps is not None:
        written["mps"] = replicated_document(sharing.mps)
    if sharing.fractional:
        written["fractional"] = {"resources": [_fractional(resource) for resource in sharing.fractional]}
    return written


def replicated_document(replicated_resources: ReplicatedResources) -> Json:
    """Return `sharing.timeSlicing` or `sharing.mps`."""
    return {
        "renameByDefault": replicated_resources.rename_by_default,
        "failRequestsGreaterThanOne": replicated_resources.fail_requests_greater_than_one,
        "resources": [replicated_resource_document(resource) for resource in replicated_resources.resources],
    }


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


def imex_document(imex: Imex) -> Json:
    """Return `imex`."""
    written: Json = {} if imex.channel_ids is None else {"channelIDs": list(imex.channel_ids)}
    return written if imex.required is None else written | {"required": imex.required}


def _fractional(resource: FractionalResource) -> Json:
    return {"name": resource.name, "devices": devices_document(resource.devices)}


def _rule(resource_rule: ResourceRule) -> Json:
    return {"pattern": resource_rule.pattern, "name": resource_rule.name}
