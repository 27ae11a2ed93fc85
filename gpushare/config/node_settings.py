"""The effective value of every flag that this agent uses, under names of this project, validated.

Invalid values and combinations are rejected as NVIDIA's plugin does at its start. `restricted` is for nodes that should
behave as with its released binary, which reads names and lists of devices and then drops them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpushare import errors
from gpushare.config import flags, value_parsers
from gpushare.config.flags import FlagValue
from gpushare.config.model import ALL, Config, ReplicaStrategy, ReplicatedResources, Resources, Sharing

OWN_MPS_ROOT: Final = "the agent's own"
# Needed before there is a configuration, and where each is set.
AT_START: Final = {"mpsRoot": "--mps-root", "failOnInitError": "--fail-on-init-error"}
ADVICE: Final = "strict compatibility is on"


def _of(key: str) -> Any:
    """Return a field with the value of that flag, and its default."""
    return dataclasses.field(default=flags.BY_KEY[key].default, metadata={"flag": key})


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSettings:
    """The flags in this project's words; docs/configuration.md explains each."""

    mig_strategy: str = _of("migStrategy")
    fail_on_init_error: bool = _of("failOnInitError")
    mps_root: str = _of("mpsRoot")
    driver_root: str = _of("nvidiaDriverRoot")
    dev_root: str = dataclasses.field(default="/", metadata={"flag": "nvidiaDevRoot"})  # by default the driver's
    gdrcopy: bool = _of("gdrcopyEnabled")
    gds: bool = _of("gdsEnabled")
    mofed: bool = _of("mofedEnabled")
    pass_device_specs: bool = _of("plugin.passDeviceSpecs")
    device_list_strategies: tuple[str, ...] = _of("plugin.deviceListStrategy")
    names_strategies: bool = False  # whether the administrator has named them
    device_id_strategy: str = _of("plugin.deviceIDStrategy")
    cdi_annotation_prefix: str = _of("plugin.cdiAnnotationPrefix")
    cdi_hook: str = _of("plugin.nvidiaCTKPath")
    container_driver_root: str = _of("plugin.containerDriverRoot")
    allocation_policy: str = _of("plugin.sharedDevicesAllocationPolicy")
    imex_channels: tuple[int, ...] = _of("imex.channelIDs")
    imex_required: bool = _of("imex.required")
    timestamp_label: bool = True
    machine_type_file: str = _of("gfd.machineTypeFile")


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
    by_hand = config.flags.values.keys() | flags.by_hand(arguments, environment)
    # Without a root, the agent's own is meant, which NVIDIA's plugin lacks.
    rooted = values | {"mpsRoot": values["mpsRoot"] or OWN_MPS_ROOT}
    check_settings(rooted, strategy=config.sharing.strategy if strict else ReplicaStrategy.NONE, has_nvml=has_nvml)
    fields: dict[str, Any] = {
        field.name: values[field.metadata["flag"]] for field in dataclasses.fields(NodeSettings) if field.metadata
    }
    named = "plugin.deviceListStrategy" in by_hand
    return NodeSettings(**fields, names_strategies=named, timestamp_label=not values["gfd.noTimestamp"])


def values_of(
    config: Config, *, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, FlagValue]:
    """Return the effective value of every flag by its key in the file, unchecked."""
    file = dict(config.flags.values)
    if config.imex.channel_ids is not None:
        file["imex.channelIDs"] = config.imex.channel_ids
    if config.imex.required is not None:
        file["imex.required"] = config.imex.required
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


def check_settings(
    values: Mapping[str, FlagValue], *, strategy: ReplicaStrategy = ReplicaStrategy.NONE, has_nvml: bool = True
) -> None:
    """Check the effective value of every flag (`flags.effective`). Raises ConfigError naming the flag."""

    def check(value: FlagValue, words: Sequence[str], problem: str) -> None:
        if value not in words:
            raise errors.ConfigError(f"{problem} {value}: write one of {', '.join(words)}")

    listed, policy = values["plugin.deviceListStrategy"], values["plugin.sharedDevicesAllocationPolicy"]
    strategies = [str(word) for word in listed] if isinstance(listed, tuple) else [str(listed)]
    for word in strategies or [""]:
        known = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
        check(word, known, "invalid --device-list-strategy option:")
    if not has_nvml and any(word.startswith("cdi-") for word in strategies):
        raise errors.ConfigError(
            "CDI --device-list-strategy options are only supported on NVML-based systems: write envvar or volume-mounts"
        )
    check(values["plugin.deviceIDStrategy"], ("uuid", "index"), "invalid --device-id-strategy option:")
    check(policy, ("distributed", "packed"), "invalid --shared-devices-allocation-policy option:")
    if strategy is ReplicaStrategy.MPS:
        if values["migStrategy"] == "mixed":
            raise errors.ConfigError("using --mig-strategy=mixed is not supported with MPS: write none")
        if not values["mpsRoot"]:
            raise errors.ConfigError("using MPS requires --mps-root to be specified, such as /run/nvidia/mps")
    discovery = values["deviceDiscoveryStrategy"]
    check(discovery, ("auto", "nvml", "tegra"), "invalid --device-discovery-strategy option")
    check(values["migStrategy"], ("none", "single", "mixed"), "unknown MIG strategy:")
    channels = values["imex.channelIDs"]
    check_imex_channels(channels if isinstance(channels, tuple) else ())


def check_imex_channels(identities: Sequence[int | str]) -> None:
    """Raise ConfigError unless the list is empty or [0]."""
    if tuple(identities) not in ((), (0,)):
        raise errors.ConfigError(f"invalid IMEX channel IDs: {list(identities)}: write [] or [0]")


def restricted(config: Config) -> Config:
    """Return the configuration as the released binary acts on it (MPS wins), with a warning for each dropped part."""
    mps, time_slicing = config.sharing.mps, config.sharing.time_slicing
    warnings = list(config.warnings)
    for key, is_dropped, why in (
        ("resources", config.resources != Resources(), ", and customizing the 'resources' field is not supported"),
        ("sharing.timeSlicing", mps is not None and time_slicing is not None, ", and sharing.mps is set"),
        ("sharing.fractional", config.sharing.fractional, ""),
        ("mig", config.mig, ""),
    ):
        if is_dropped:
            warnings.append(f"{key} has no effect: {ADVICE}{why}")
    if mps is not None:
        mps = restricted_resources(mps, "sharing.mps", warnings)
    if time_slicing is not None:
        time_slicing = restricted_resources(time_slicing, "sharing.timeSlicing", warnings)
    sharing = Sharing(time_slicing if mps is None else None, mps)
    return dataclasses.replace(config, resources=Resources(), sharing=sharing, mig=(), warnings=tuple(warnings))


def restricted_resources(shared: ReplicatedResources, path: str, warnings: list[str]) -> ReplicatedResources:
    """Return a list of shared resources without their names and devices; add a sentence to `warnings` for each."""
    resources = []
    for index, resource in enumerate(shared.resources):
        rename = value_parsers.shared_name(resource.name) if shared.rename_by_default else None
        where = f"{path}.resources[{index}]"
        if resource.rename not in (rename, None):
            warnings.append(f"{where}.rename {resource.rename} has no effect: {ADVICE}")
        if resource.devices != ALL:
            warnings.append(f"{where}.devices {resource.devices} has no effect, all are shared: {ADVICE}")
        if resource.interval:
            warnings.append(f"{where}.interval {resource.interval} has no effect: {ADVICE}")
        resources.append(dataclasses.replace(resource, rename=rename, devices=ALL, interval=""))
    return dataclasses.replace(shared, resources=tuple(resources))
