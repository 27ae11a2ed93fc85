"""Flags: their names in the file, on the command line and in the environment, and which source wins.

The command line overrides the environment, which overrides the file, which overrides the default. The names are those
of NVIDIA's device plugin, so that its manifests and files mean the same here.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from gpushare import errors
from gpushare.config import value_parsers

FlagValue: TypeAlias = bool | int | str | tuple[str, ...] | tuple[int, ...]

_NODE_FEATURE_VARIABLES: Final = ("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API")
GFD_OUTPUT_FILE: Final = "/etc/kubernetes/node-feature-discovery/features.d/gfd"


class FlagType(enum.Enum):
    """The type of a flag's values."""

    TEXT = "a text"
    BOOL = "true or false"
    TEXTS = "a string or a list of strings"
    DURATION = 'a duration such as "60s"'
    NUMBERS = "a list of whole numbers"


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `key` is its path below `flags`; `omitted`: written only if set."""

    key: str
    options: tuple[str, ...]
    variables: tuple[str, ...]
    default: FlagValue
    kind: FlagType = FlagType.TEXT
    omitted: bool = False


def _named(
    key: str,
    name: str,
    default: FlagValue,
    kind: FlagType = FlagType.TEXT,
    *,
    alias: str | None = None,
    omitted: bool = False,
) -> Flag:
    """Return the flag with these names on the command line, and the same in the environment."""
    names = (name,) if alias is None else (name, alias)
    options = tuple(f"--{name}" for name in names)
    variables = tuple(name.upper().replace("-", "_") for name in names)
    return Flag(key, options, variables, default, kind, omitted)


FLAGS: Final = (
    _named("migStrategy", "mig-strategy", "none"),
    _named("failOnInitError", "fail-on-init-error", True, FlagType.BOOL),
    _named("mpsRoot", "mps-root", "", omitted=True),
    Flag("nvidiaDriverRoot", ("--driver-root", "--nvidia-driver-root"), ("NVIDIA_DRIVER_ROOT",), "/", omitted=True),
    Flag("nvidiaDevRoot", ("--dev-root", "--nvidia-dev-root"), ("NVIDIA_DEV_ROOT",), "", omitted=True),
    _named("gdrcopyEnabled", "gdrcopy-enabled", False, FlagType.BOOL),
    _named("gdsEnabled", "gds-enabled", False, FlagType.BOOL),
    _named("mofedEnabled", "mofed-enabled", False, FlagType.BOOL),
    Flag("useNodeFeatureAPI", ("--use-node-feature-api",), _NODE_FEATURE_VARIABLES, True, FlagType.BOOL),
    _named("deviceDiscoveryStrategy", "device-discovery-strategy", "auto"),
    _named("plugin.passDeviceSpecs", "pass-device-specs", False, FlagType.BOOL),
    _named("plugin.deviceListStrategy", "device-list-strategy", ("envvar",), FlagType.TEXTS),
    _named("plugin.deviceIDStrategy", "device-id-strategy", "uuid"),
    _named("plugin.cdiAnnotationPrefix", "cdi-annotation-prefix", "cdi.k8s.io/"),
    _named("plugin.nvidiaCTKPath", "nvidia-cdi-hook-path", "/usr/bin/nvidia-ctk", alias="nvidia-ctk-path"),
    _named("plugin.containerDriverRoot", "driver-root-ctr-path", "/driver-root", alias="container-driver-root"),
    _named("plugin.sharedDevicesAllocationPolicy", "shared-devices-allocation-policy", "distributed"),
    Flag("gfd.oneshot", ("--oneshot",), ("GFD_ONESHOT",), False, FlagType.BOOL),
    Flag("gfd.noTimestamp", ("--no-timestamp",), ("GFD_NO_TIMESTAMP",), False, FlagType.BOOL),
    Flag("gfd.outputFile", ("--output-file", "-o"), ("GFD_OUTPUT_FILE",), GFD_OUTPUT_FILE),
    Flag("gfd.sleepInterval", ("--sleep-interval",), ("GFD_SLEEP_INTERVAL",), 60 * 10**9, FlagType.DURATION),
    Flag("gfd.machineTypeFile", ("--machine-type-file",), ("GFD_MACHINE_TYPE_FILE",), "/sys/class/dmi/id/product_name"),
    # Not below `flags` in a file, but set and ranked in the same way.
    _named("imex.channelIDs", "imex-channel-ids", (), FlagType.NUMBERS),
    _named("imex.required", "imex-required", False, FlagType.BOOL),
    # Not in a file at all.
    _named("kubeletSocket", "kubelet-socket", "/var/lib/kubelet/device-plugins/kubelet.sock"),
    _named("configFile", "config-file", ""),
    _named("cdiFeatureFlags", "cdi-feature-flags", (), FlagType.TEXTS),
    _named("cdiDisableHooks", "cdi-disable-hooks", (), FlagType.TEXTS),
)

BY_KEY: Final[Mapping[str, Flag]] = {flag.key: flag for flag in FLAGS}
_OUTSIDE_FLAGS: Final = ("imex.", "kubeletSocket", "configFile", "cdiFeatureFlags", "cdiDisableHooks")
IN_FILE: Final = tuple(flag for flag in FLAGS if not flag.key.startswith(_OUTSIDE_FLAGS))
SECTIONS: Final = ("plugin", "gfd")

_BY_OPTION: Final = {option: flag for flag in FLAGS for option in flag.options}
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def effective(
    file: Mapping[str, FlagValue], *, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, FlagValue]:
    """Return the value of every flag, by key. Raises ConfigError naming the option or variable with an invalid value.

    file: the values in the file, by key (`Flags.values`, and `imex.…`). arguments: the command line, as `--flag=value`,
    `--flag value` or, for booleans, `--flag`; other options are ignored.
    """
    values = {flag.key: flag.default for flag in FLAGS} | dict(file)
    values |= by_hand(arguments, environment)
    values["nvidiaDevRoot"] = values["nvidiaDevRoot"] or values["nvidiaDriverRoot"]
    return values


def by_hand(arguments: Sequence[str], environment: Mapping[str, str] | None) -> dict[str, FlagValue]:
    """Return the values that the environment or the command line sets, by key."""
    return _from_environment(environment or {}) | _from_arguments(arguments)


def _from_environment(environment: Mapping[str, str]) -> dict[str, FlagValue]:
    values: dict[str, FlagValue] = {}
    for flag in FLAGS:
        name = next((variable for variable in flag.variables if variable in environment), "")
        if environment.get(name) or (name and flag.kind is FlagType.TEXT):
            values[flag.key] = _value(flag, environment[name], name)
        elif name and flag.kind is FlagType.BOOL:  # of the other kinds, an empty variable sets none
            values[flag.key] = False
    return values


def _from_arguments(arguments: Sequence[str]) -> dict[str, FlagValue]:
    values: dict[str, FlagValue] = {}
    rest = list(reversed(arguments))
    while rest:
        option, equals, text = rest.pop().partition("=")
        flag = _BY_OPTION.get(option)
        if flag is None:
            continue
        if not equals and flag.kind is FlagType.BOOL:
            text = "true"
        elif not equals:
            if not rest:
                raise errors.ConfigError(f"{option} has no value: write {option}={flag.kind.value}")
            text = rest.pop()
        values[flag.key] = _value(flag, text, option, values.get(flag.key))
    return values


def _value(flag: Flag, text: str, where: str, before: FlagValue | None = None) -> FlagValue:
    """Return a flag's value from its text; `before`: the parts of a list so far, which may come in several."""
    shown = f"{where} {errors.quoted(text)}"
    match flag.kind:
        case FlagType.TEXT:
            return text
        case FlagType.BOOL:
            if text not in _TRUE | _FALSE:
                raise errors.ConfigError(f"{shown} is neither true nor false")
            return text in _TRUE
        case FlagType.DURATION:
            try:
                return value_parsers.parse_duration(text)
            except errors.ConfigError as error:
                raise errors.ConfigError(f"{shown} {error}") from error
    items = [item.strip() for item in text.split(",")] if text else []
    if isinstance(before, tuple):
        items = [*map(str, before), *items]
    if flag.kind is not FlagType.NUMBERS:
        return tuple(items)
    if not all(re.fullmatch(r"-?[0-9]{1,9}", item) for item in items):
        raise errors.ConfigError(f"{shown} is not a list of whole numbers")
    return tuple(map(int, items))
