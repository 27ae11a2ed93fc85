"""The effective value of every flag that this agent uses, under names of this project, validated.

Invalid values and combinations are rejected as NVIDIA's plugin does at its start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare import errors
from gpushare.config import flags, value_parsers
from gpushare.config.model import (
    ALL,
    Config,
    FlagValue,
    Imex,
    ReplicaStrategy,
    ReplicatedResource,
    ReplicatedResources,
    Resources,
    Sharing,
)

OWN_MPS_ROOT: Final = "the agent's own"
# Needed before there is a configuration, and where each is set.
AT_START: Final = {"mpsRoot": "--mps-root", "failOnInitError": "--fail-on-init-error"}


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSettings:
    """The flags in this project's words; docs/configuration.md explains each."""

    mig_strategy: str = "none"
    fail_on_init_error: bool = True
    mps_root: str = ""
    driver_root: str = "/"
    dev_root: str = "/"
    gdrcopy: bool = False
    gds: bool = False
    mofed: bool = False
    pass_device_specs: bool = False
    device_list_strategies: tuple[str, ...] = ("envvar",)
    names_strategies: bool = False  # whether the administrator has named them
    device_id_strategy: str = "uuid"
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    cdi_hook: str = "/usr/bin/nvidia-ctk"
    container_driver_root: str = "/driver-root"
    allocation_policy: str = "distributed"
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    timestamp_label: bool = True
    machine_type_file: str = "/sys/class/dmi/id/product_name"


_KEYS = {
    "mig_strategy": "migStrategy",
    "fail_on_init_error": "failOnInitError",
    "mps_root": "mpsRoot",
    "driver_root": "nvidiaDriverRoot",
    "dev_root": "nvidiaDevRoot",
    "gdrcopy": "gdrcopyEnabled",
    "gds": "gdsEnabled",
    "mofed": "mofedEnabled",
    "pass_device_specs": "plugin.passDeviceSpecs",
    "device_list_strategies": "plugin.deviceListStrategy",
    "device_id_strategy": "plugin.deviceIDStrategy",
    "cdi_annotation_prefix": "plugin.cdiAnnotationPrefix",
    "cdi_hook": "plugin.nvidiaCTKPath",
    "container_driver_root": "plugin.containerDriverRoot",
    "allocation_policy": "plugin.sharedDevicesAllocationPolicy",
    "imex_required": "imex.required",
    "machine_type_file": "gfd.machineTypeFile",
}


def effective(
    config: Config,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    strict: bool = False,
    has_nvml: bool = True,
) -> NodeSettings:
    """Return the settings in force under `config`. Raises ConfigError for invalid values.

    strict: validate as NVIDIA's binary does, where MPS excludes the MIG strategy mixed. Otherwise each GPU has its own
    mode, so the two do not conflict. A file that partitions GPUs without `migStrategy` means `mixed`.
    """
    values = values_of(config, arguments=arguments, environment=environment)
    by_hand = config.flags.values.keys() | flags.keys_set(arguments, environment or {})
    # Without a root, the agent's own is meant, which NVIDIA's plugin lacks.
    rooted = values | {"mpsRoot": values["mpsRoot"] or OWN_MPS_ROOT}
    check_settings(rooted, strategy=config.sharing.strategy if strict else ReplicaStrategy.NONE, has_nvml=has_nvml)
    named = {field: values[key] for field, key in _KEYS.items()}
    channels = values["imex.channelIDs"]
    return NodeSettings(
        **named,  # type: ignore[arg-type]  # the kinds of the table of flags
        imex_channels=tuple(int(channel) for channel in channels) if isinstance(channels, tuple) else (),
        names_strategies=_KEYS["device_list_strategies"] in by_hand,
        timestamp_label=not values["gfd.noTimestamp"],
    )


def values_of(
    config: Config, *, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, FlagValue]:
    """Return the effective value of every flag by its key in the file, unchecked."""
    file = {**config.flags.values, **_imex(config.imex)}
    if "migStrategy" not in file and config.makes_mig_devices:
        file["migStrategy"] = "mixed"
    return flags.effective(file, arguments=arguments, environment=environment)


def ignored_until_restart(
    config: Config, *, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return a warning for each value in the file that differs from the agent's and takes effect only at its start."""
    present = values_of(Config(), arguments=arguments, environment=environment)
    return tuple(
        f"flags.{key} {value} has no effect: the agent takes it from {option} when it starts"
        for key, option in AT_START.items()
        if (value := config.flags.values.get(key)) not in (None, "", present[key])
    )


def _imex(imex: Imex) -> dict[str, FlagValue]:
    values: dict[str, FlagValue] = {}
    if imex.channel_ids is not None:
        values["imex.channelIDs"] = imex.channel_ids
    if imex.required is not None:
        values["imex.required"] = imex.required
    return values


DEVICE_LIST_STRATEGIES: Final = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
DEVICE_ID_STRATEGIES: Final = ("uuid", "index")
POLICIES: Final = ("distributed", "packed")
DISCOVERY_STRATEGIES: Final = ("auto", "nvml", "tegra")
MIG_STRATEGIES: Final = ("none", "single", "mixed")


def mps_default(written: ReplicatedResources) -> ReplicatedResources:
    """Return the file with `failRequestsGreaterThanOne` for MPS, its default: two replicas are no larger share."""
    if written.fail_requests_greater_than_one is not None:
        return written
    return dataclasses.replace(written, fail_requests_greater_than_one=True)


def check_settings(
    values: Mapping[str, FlagValue], *, strategy: ReplicaStrategy = ReplicaStrategy.NONE, has_nvml: bool = True
) -> None:
    """Check the effective value of every flag (`flags.effective`). Raises ConfigError naming the flag.

    strategy: how the node's devices are shared; has_nvml: whether the driver's library answers.
    """
    listed = values["plugin.deviceListStrategy"]
    strategies = listed if isinstance(listed, tuple) else (str(listed),)
    for word in strategies or ("",):
        _one_of(str(word), DEVICE_LIST_STRATEGIES, "invalid --device-list-strategy option: {}")
    if not has_nvml and any(str(word).startswith("cdi-") for word in strategies):
        raise errors.ConfigError(
            "CDI --device-list-strategy options are only supported on NVML-based systems: write envvar or volume-mounts"
        )
    _one_of(values["plugin.deviceIDStrategy"], DEVICE_ID_STRATEGIES, "invalid --device-id-strategy option: {}")
    _one_of(
        values["plugin.sharedDevicesAllocationPolicy"],
        POLICIES,
        "invalid --shared-devices-allocation-policy option: {}",
    )
    mig = values["migStrategy"]
    if strategy is ReplicaStrategy.MPS:
        if mig == "mixed":
            raise errors.ConfigError("using --mig-strategy=mixed is not supported with MPS: write none")
        if not values["mpsRoot"]:
            raise errors.ConfigError("using MPS requires --mps-root to be specified, such as /run/nvidia/mps")
    _one_of(values["deviceDiscoveryStrategy"], DISCOVERY_STRATEGIES, "invalid --device-discovery-strategy option {}")
    _one_of(mig, MIG_STRATEGIES, "unknown MIG strategy: {}")
    channels = values["imex.channelIDs"]
    imex_channels(channels if isinstance(channels, tuple) else ())


def imex_channels(identities: Sequence[int | str]) -> None:
    """Raise ConfigError unless the list is empty or [0]."""
    if tuple(identities) not in ((), (0,)):
        raise errors.ConfigError(f"invalid IMEX channel IDs: {list(identities)}: write [] or [0]")


def _one_of(value: FlagValue, words: Sequence[str], problem: str) -> None:
    if value not in words:
        raise errors.ConfigError(f"{problem.format(value)}: write one of {', '.join(words)}")


ADVICE: Final = "strict compatibility is on"


def restricted(config: Config) -> Config:
    """Return the configuration as the released binary acts on it, with a warning for each dropped part.

    If both MPS and time-slicing are configured, only MPS is in force, as there.
    """
    warnings = list(config.warnings)
    if config.resources != Resources():
        warnings.append(f"resources has no effect: {ADVICE}, and customizing the 'resources' field is not supported")
    if config.sharing.mps is not None and config.sharing.time_slicing is not None:
        warnings.append(f"sharing.timeSlicing has no effect: {ADVICE}, and sharing.mps is set")
    if config.sharing.fractional:
        warnings.append(f"sharing.fractional has no effect: {ADVICE}")
    if config.mig:
        warnings.append(f"mig has no effect: {ADVICE}")
    mps = None if config.sharing.mps is None else restricted_resources(config.sharing.mps, "sharing.mps", warnings)
    time_slicing = None
    if config.sharing.time_slicing is not None:
        time_slicing = restricted_resources(config.sharing.time_slicing, "sharing.timeSlicing", warnings)
    return dataclasses.replace(
        config,
        resources=Resources(),
        sharing=Sharing(None if mps is not None else time_slicing, mps),
        mig=(),
        warnings=tuple(warnings),
    )


def restricted_resources(
    replicated_resources: ReplicatedResources, path: str, warnings: list[str]
) -> ReplicatedResources:
    """Return a list of shared resources without their names and devices; add a sentence to `warnings` for each."""
    return dataclasses.replace(
        replicated_resources,
        resources=tuple(
            _restricted(entry, replicated_resources.rename_by_default, f"{path}.resources[{index}]", warnings)
            for index, entry in enumerate(replicated_resources.resources)
        ),
    )


def _restricted(
    resource: ReplicatedResource, rename_by_default: bool, path: str, warnings: list[str]
) -> ReplicatedResource:
    rename = value_parsers.shared_name(resource.name) if rename_by_default else None
    if resource.rename != rename and resource.rename is not None:
        warnings.append(f"{path}.rename {resource.rename} has no effect: {ADVICE}")
    if resource.devices != ALL:
        warnings.append(f"{path}.devices {resource.devices} has no effect, all are shared: {ADVICE}")
    if resource.interval:
        warnings.append(f"{path}.interval {resource.interval} has no effect: {ADVICE}")
    return dataclasses.replace(resource, rename=rename, devices=ALL, interval="")
