"""What a node is to be: the configuration that label and ConfigMap pick, understood for the GPUs that there are. Pure.

A configuration counts only when all of it is good: it can be read, its flags have values that exist, and every GPU can
be what it says. Until then the one before it stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare import errors
from gpushare.config import reading, restrictions, selection
from gpushare.config import settings as configured
from gpushare.config.model import Config
from gpushare.config.selection import InForce
from gpushare.modes import plan
from gpushare.modes.assignment import Assignment
from gpushare.modes.card import Card

# Of a cluster that has no configuration: every GPU takes shares by annotation.
BUILT_IN: Final = InForce("default", "sharing: {fractional: {resources: [{name: nvidia.com/gpu}]}}\n")

# What the agent needs to know before there is a configuration, and how it is told.
AT_START: Final = {"mpsRoot": "--mps-root", "failOnInitError": "--fail-on-init-error"}


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the agent was started with, and what counts more than a file.

    default: the entry for nodes without a label; fallbacks: as of `selection.select`.
    arguments, environment: where NVIDIA's flags may be; strict: as their binary behaves.
    """

    default: str = ""
    fallbacks: tuple[str, ...] = selection.FALLBACKS
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    strict: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """What the GPUs are to be, by UUID, and by which configuration."""

    config: InForce
    settings: configured.Settings
    assignments: Mapping[str, Assignment]
    warnings: tuple[str, ...] = ()


def understood(config: InForce, cards: Sequence[Card], options: Options) -> Wish:
    """The configuration for these GPUs. Raises ConfigError, a sentence that names the entry."""
    try:
        read = reading.read(config.text)
        if options.strict and config != BUILT_IN:
            read = restrictions.strict(read)
        settings = configured.effective(
            read, arguments=options.arguments, environment=options.environment, strict=options.strict
        )
        made = plan.plan(read, cards, mig_strategy=settings.mig_strategy)
    except errors.ConfigError as error:
        raise errors.ConfigError(f"configuration {config.name or 'without a name'}: {error}") from error
    return Wish(config, settings, made.assignments, (*read.warnings, *made.warnings, *_too_late(read, options)))


def _too_late(read: Config, options: Options) -> tuple[str, ...]:
    """What the file says otherwise than the agent was started with, of what cannot be changed any more."""
    present = configured.values_of(Config(), arguments=options.arguments, environment=options.environment)
    return tuple(
        f"flags.{key} {value} has no effect: it is fixed when the agent starts, by {option}"
        for key, option in AT_START.items()
        if (value := read.flags.values.get(key)) not in (None, "", present[key])
    )


def chosen(
    current: InForce | None, entries: Mapping[str, str], *, label: str | None, options: Options
) -> selection.Decision:
    """Which configuration is asked for; `current` and the reason where there is no such one.

    A ConfigMap that vanishes changes nothing: it may be on its way back, and its entry is still the last good one.
    """
    if not entries and not label and not options.default and current in (None, BUILT_IN):
        return selection.Decision(BUILT_IN, reload=current != BUILT_IN)
    return selection.decide(current, dict(entries), label=label, default=options.default, fallbacks=options.fallbacks)
