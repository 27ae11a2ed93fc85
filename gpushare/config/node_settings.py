"""Settings: the effective value of every flag that this agent uses, under names of this project, validated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare.config import checks, flags
from gpushare.config.model import Config, FlagValue, Imex, ReplicaStrategy

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
    checks.settings(rooted, strategy=config.sharing.strategy if strict else ReplicaStrategy.NONE, has_nvml=has_nvml)
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
