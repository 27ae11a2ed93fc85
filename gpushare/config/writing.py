"""A `Config` as plain data in the form of its file; `reading.read` of it gives the same again."""

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


def config(found: Config) -> Json:
    """The whole file; sections that say nothing are left out."""
    document: Json = {"version": found.version}
    if found.flags != Flags():
        document["flags"] = flags(found.flags)
    rules = {"gpus": found.resources.gpus, "mig": found.resources.mig}
    if any(rules.values()):
        document["resources"] = {key: [_rule(one) for one in value] for key, value in rules.items() if value}
    if found.sharing != Sharing():
        document["sharing"] = sharing(found.sharing)
    if found.imex != Imex():
        document["imex"] = imex(found.imex)
    if found.mig:
        document["mig"] = found.mig if isinstance(found.mig, str) else [parted.written(entry) for entry in found.mig]
    return document


def flags(found: Flags) -> Json:
    """`flags` as NVIDIA's plugin prints them: what is unset is null, or left out where it may be."""
    written = _section(found, "")
    for section in flag_table.SECTIONS:
        if section in found.sections or any(key.startswith(f"{section}.") for key in found.values):
            written[section] = _section(found, f"{section}.")
    return written


def _section(found: Flags, prefix: str) -> Json:
    return {
        flag.key.removeprefix(prefix): _flag(flag, found.values.get(flag.key))
        for flag in flag_table.IN_FILE
        if flag.key.rpartition(".")[0] == prefix.rstrip(".") and not (flag.omitted and flag.key not in found.values)
    }


def _flag(flag: flag_table.Flag, value: FlagValue | None) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if flag.kind is flag_table.FlagType.DURATION and isinstance(value, int):
        return durations.format_nanoseconds(value)
    return value


def sharing(found: Sharing) -> Json:
    """`sharing` as the data of a file."""
    written: Json = {}
    if found.time_slicing is not None:
        written["timeSlicing"] = replicated_resources(found.time_slicing)
    if found.mps is not None:
        written["mps"] = replicated_resources(found.mps)
    if found.fractional:
        written["fractional"] = {"resources": [_fractional(one) for one in found.fractional]}
    return written


def replicated_resources(found: ReplicatedResources) -> Json:
    """`sharing.timeSlicing` or `sharing.mps` as the data of a file."""
    return {
        "renameByDefault": found.rename_by_default,
        "failRequestsGreaterThanOne": found.fail_requests_greater_than_one,
        "resources": [replicated_resource(one) for one in found.resources],
    }


def replicated_resource(found: ReplicatedResource) -> Json:
    """One entry of its `resources`."""
    interval = {"interval": found.interval} if found.interval else {}
    return {
        "name": found.name,
        "rename": found.rename,
        "devices": devices(found.devices),
        "replicas": found.replicas,
    } | interval


def devices(found: Devices) -> str | int | list[str]:
    """`devices`. Raises ConfigError if nothing is chosen."""
    if found.listed is not None:
        return list(found.listed)
    if found.count is not None:
        return found.count
    if found != ALL:
        raise errors.ConfigError("devices are neither all, nor a count, nor a list")
    return "all"


def imex(found: Imex) -> Json:
    """`imex`."""
    written: Json = {} if found.channel_ids is None else {"channelIDs": list(found.channel_ids)}
    return written if found.required is None else written | {"required": found.required}


def _fractional(found: FractionalResource) -> Json:
    return {"name": found.name, "devices": devices(found.devices)}


def _rule(found: ResourceRule) -> Json:
    return {"pattern": found.pattern, "name": found.name}
