"""Writes a `Config` as plain data in the form of its file; `config_file.read` returns the same `Config`."""

from __future__ import annotations

from typing import Any

from gpushare import errors
from gpushare.config import durations
from gpushare.config import flags as flag_table
from gpushare.config.model import (
    ALL,
    Config,
    Devices,
    Flags,
    FlagValue,
    FractionalResource,
    Imex,
    ReplicatedResource,
    ReplicatedResources,
    ResourceRule,
    Sharing,
)
from gpushare.mig import parted

Json = dict[str, Any]


def config(config: Config) -> Json:
    """Return the whole file, without empty sections."""
    document: Json = {"version": config.version}
    if config.flags != Flags():
        document["flags"] = flags(config.flags)
    rules = {"gpus": config.resources.gpus, "mig": config.resources.mig}
    if any(rules.values()):
        document["resources"] = {
            key: [_rule(resource_rule) for resource_rule in value] for key, value in rules.items() if value
        }
    if config.sharing != Sharing():
        document["sharing"] = sharing(config.sharing)
    if config.imex != Imex():
        document["imex"] = imex(config.imex)
    if config.mig:
        document["mig"] = config.mig if isinstance(config.mig, str) else [parted.written(entry) for entry in config.mig]
    return document


def flags(flags: Flags) -> Json:
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
        return durations.format_nanoseconds(value)
    return value


def sharing(sharing: Sharing) -> Json:
    """Return `sharing`."""
    written: Json = {}
    if sharing.time_slicing is not None:
        written["timeSlicing"] = replicated_resources(sharing.time_slicing)
    if sharing.mps is not None:
        written["mps"] = replicated_resources(sharing.mps)
    if sharing.fractional:
        written["fractional"] = {"resources": [_fractional(resource) for resource in sharing.fractional]}
    return written


def replicated_resources(replicated_resources: ReplicatedResources) -> Json:
    """Return `sharing.timeSlicing` or `sharing.mps`."""
    return {
        "renameByDefault": replicated_resources.rename_by_default,
        "failRequestsGreaterThanOne": replicated_resources.fail_requests_greater_than_one,
        "resources": [replicated_resource(resource) for resource in replicated_resources.resources],
    }


def replicated_resource(resource: ReplicatedResource) -> Json:
    """Return one entry of its `resources`."""
    interval = {"interval": resource.interval} if resource.interval else {}
    return {
        "name": resource.name,
        "rename": resource.rename,
        "devices": devices(resource.devices),
        "replicas": resource.replicas,
    } | interval


def devices(devices: Devices) -> str | int | list[str]:
    """Return `devices`. Raises ConfigError if none is selected."""
    if devices.listed is not None:
        return list(devices.listed)
    if devices.count is not None:
        return devices.count
    if devices != ALL:
        raise errors.ConfigError("devices are neither all, nor a count, nor a list")
    return "all"


def imex(imex: Imex) -> Json:
    """Return `imex`."""
    written: Json = {} if imex.channel_ids is None else {"channelIDs": list(imex.channel_ids)}
    return written if imex.required is None else written | {"required": imex.required}


def _fractional(resource: FractionalResource) -> Json:
    return {"name": resource.name, "devices": devices(resource.devices)}


def _rule(resource_rule: ResourceRule) -> Json:
    return {"pattern": resource_rule.pattern, "name": resource_rule.name}
