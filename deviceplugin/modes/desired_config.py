"""What a node is to be: the configuration that label and ConfigMap pick, understood for the GPUs that there are. Pure.

A configuration counts only when all of it is good: it can be read, its flags have values that exist, and every GPU can
be what it says. Until then the one before it stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gpushare import errors
from gpushare.config import config_choice, config_file, restrictions
from gpushare.config import node_settings as configured
from gpushare.config.config_choice import ActiveConfig
from gpushare.modes import mode_plan
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu


@dataclasses.dataclass(frozen=True, slots=True)
class ModeOptions:
    """What the agent was started with, and what counts more than a file.

    default: the entry for nodes without a label; fallbacks: as of `config_choice.select`.
    arguments, environment: where NVIDIA's flags may be; strict: as their binary behaves.
    """

    default: str = ""
    fallbacks: tuple[str, ...] = config_choice.FALLBACKS
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    strict: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class DesiredConfig:
    """What the GPUs are to be, by UUID, and by which configuration."""

    config: ActiveConfig
    settings: configured.NodeSettings
    assignments: Mapping[str, Assignment]
    warnings: tuple[str, ...] = ()


def understood(config: ActiveConfig, gpus: Sequence[HardwareGpu], options: ModeOptions) -> DesiredConfig:
    """The configuration for these GPUs. Raises ConfigError, a sentence that names the entry."""
    try:
        read = config_file.read(config.text)
        if options.strict and config not in config_choice.BUILT_INS.values():
            read = restrictions.strict(read)
        settings = configured.effective(
            read, arguments=options.arguments, environment=options.environment, strict=options.strict
        )
        made = mode_plan.plan(read, gpus, mig_strategy=settings.mig_strategy)
    except errors.ConfigError as error:
        raise errors.ConfigError(f"configuration {config.name or 'without a name'}: {error}") from error
    late = configured.ignored_until_restart(read, arguments=options.arguments, environment=options.environment)
    return DesiredConfig(config, settings, made.assignments, (*read.warnings, *made.warnings, *late))


def chosen(
    current: ActiveConfig | None, entries: Mapping[str, str], *, label: str | None, options: ModeOptions
) -> config_choice.Decision:
    """Which configuration is asked for; `current` and the reason where there is no such one.

    A ConfigMap that vanishes changes nothing: it may be on its way back, and its entry is still the last good one.
    """
    built_in = config_choice.built_in(current, entries, label=label, default=options.default)
    if built_in is not None:
        return config_choice.Decision(built_in)
    return config_choice.decide(
        current, dict(entries), label=label, default=options.default, fallbacks=options.fallbacks
    )
