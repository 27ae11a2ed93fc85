"""Selects a node's configuration and applies it to its GPUs. Everything but `ConfigSelector` is pure.

A configuration is accepted only as a whole: it parses, its flags have known values, and every GPU can take the mode
that it asks for. Until then the previous configuration stays in force.

A configuration names GPUs by number, or counts them. When a GPU dies, the driver renumbers those behind it. So while a
GPU is missing and the configuration is the same, every GPU keeps its old number and the missing one is counted as
present. A GPU that the driver counts but cannot read is counted too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from deviceplugin.agent_settings import ModeOptions
from deviceplugin.cluster_objects import Configuration
from gpushare import errors
from gpushare.allocation import Allocation
from gpushare.config import config_choice, config_file
from gpushare.config import node_settings as configured
from gpushare.config.config_choice import ActiveConfig
from gpushare.gpunode import Mode
from gpushare.modes import mode_plan
from gpushare.modes.assignment import Assignment, contradiction
from gpushare.modes.hardware_gpu import HardwareGpu

logger = logging.getLogger(__name__)

UNREAD: Final = "unread-"  # how the placeholder for the UUID of a GPU that cannot be read begins
_WITHOUT_SETUP: Final = (Mode.FRACTIONAL, Mode.EXCLUSIVE, Mode.TIME_SLICING)  # a first agent can serve them at once


@dataclasses.dataclass(frozen=True, slots=True)
class DesiredConfig:
    """A valid configuration with the assignment of each GPU, by UUID."""

    config: ActiveConfig
    settings: configured.NodeSettings
    assignments: Mapping[str, Assignment]
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ConfiguredGpu:
    """A GPU as the configuration knows it: UUID, number, and the facts that a configuration can select by."""

    uuid: str
    index: int
    model: str = ""
    mig_capable: bool = False


def resolve(config: ActiveConfig, gpus: Sequence[HardwareGpu], options: ModeOptions) -> DesiredConfig:
    """Apply a configuration to these GPUs. Raises ConfigError with a sentence that names the entry."""
    try:
        read = config_file.read(config.text)
        if options.strict and config not in (config_choice.BORROWED, *config_choice.BUILT_INS.values()):
            read = configured.restricted(read)
        settings = configured.effective(
            read, arguments=options.arguments, environment=options.environment, strict=options.strict
        )
        made = mode_plan.plan(read, gpus, mig_strategy=settings.mig_strategy)
    except errors.ConfigError as error:
        raise errors.ConfigError(f"configuration {config.name or 'without a name'}: {error}") from error
    late = configured.ignored_until_restart(read, arguments=options.arguments, environment=options.environment)
    return DesiredConfig(config, settings, made.assignments, (*read.warnings, *made.warnings, *late))


def choose(
    current: ActiveConfig | None,
    entries: Mapping[str, str],
    *,
    label: str | None,
    options: ModeOptions,
    borrows: bool = False,
    foreign: str = "",
) -> config_choice.Decision:
    """Return the entry that the node asks for; if there is none, return `current` and the reason.

    borrows: whether another device plugin gives the node's GPUs. foreign: why they may still be that plugin's.

    A ConfigMap that vanishes changes nothing: it may come back, and its entry is still the last valid one. Only a label
    that names a configuration ends BORROWED: no default may hand the other plugin's GPUs to shares.
    """
    if borrows or (current == config_choice.BORROWED and not label):
        return config_choice.Decision(config_choice.BORROWED)
    if current == config_choice.BORROWED and foreign:
        return config_choice.Decision(current, problem=f"configuration {label} waits: {foreign}")
    default = options.default
    built_in = config_choice.built_in(current, entries, label=label, default=default)
    if built_in is not None:
        return config_choice.Decision(built_in)
    return config_choice.decide(current, dict(entries), label=label, default=default, fallbacks=options.fallbacks)


def initial_assignment(gpu: HardwareGpu, wanted: Assignment, allocations: Iterable[Allocation]) -> Assignment | None:
    """Return what a GPU is used for when nothing is recorded: at the agent's first start, or for a new GPU.

    A GPU with shares is fractional. Otherwise the GPU gets `wanted` if it needs no setup for it, else None.
    """
    if any(gpu.uuid in entry.gpu_uuids for entry in allocations):
        return Assignment(Mode.FRACTIONAL)
    needs_nothing = wanted.mode in _WITHOUT_SETUP and wanted.partition is None and not wanted.interval
    return wanted if needs_nothing and not contradiction(gpu, wanted) else None


def missing(gpus: Iterable[HardwareGpu], known: Iterable[ConfiguredGpu]) -> tuple[ConfiguredGpu, ...]:
    """Return the known GPUs that are gone and whose number no new GPU has taken."""
    gpus, known = tuple(gpus), tuple(known)
    present, recorded = {gpu.uuid for gpu in gpus}, {gpu.uuid for gpu in known}
    taken = {gpu.index for gpu in gpus if gpu.uuid not in recorded}
    return tuple(gpu for gpu in known if gpu.uuid not in present and gpu.index not in taken)


def with_missing(gpus: Sequence[HardwareGpu], known: Iterable[ConfiguredGpu]) -> tuple[HardwareGpu, ...]:
    """Return the GPUs under their known numbers, together with the missing ones; unchanged if none is missing."""
    gone = missing(gpus, known)
    if not gone:
        return tuple(gpus)
    recorded = {gpu.uuid: gpu for gpu in known}
    present = [dataclasses.replace(gpu, index=recorded[gpu.uuid].index) for gpu in gpus if gpu.uuid in recorded]
    new = [gpu for gpu in gpus if gpu.uuid not in recorded]
    absent = [HardwareGpu(gpu.uuid, gpu.index, gpu.model, gpu.mig_capable) for gpu in gone]
    return tuple(sorted((*present, *new, *absent), key=lambda gpu: (gpu.index, gpu.uuid)))


def unread_gpus(gpus: Iterable[HardwareGpu], indices: Iterable[int | None]) -> tuple[HardwareGpu, ...]:
    """Return placeholders for the GPUs with these numbers that are missing in `gpus`; only the number is known."""
    known = {gpu.index for gpu in gpus}
    new = (index for index in indices if index is not None and index not in known)
    return tuple(HardwareGpu(f"{UNREAD}{index}", index, mig_capable=True) for index in new)


class ConfigSelector:
    """Selects the configuration, and remembers the last valid one.

    desired: the configuration in force; None if none was ever valid. problem: why the requested configuration is not
    in force, as a sentence; empty if it is. refused: called with each new problem.
    """

    def __init__(self, source: Configuration, options: ModeOptions, refused: Callable[[str], None]) -> None:
        self._source = source
        self._options = options
        self._refused = refused
        self._resolved: dict[tuple[ActiveConfig, tuple[HardwareGpu, ...]], DesiredConfig | errors.ConfigError] = {}
        self.desired: DesiredConfig | None = None
        self.problem = ""

    async def select(
        self,
        current: ActiveConfig | None,
        gpus: Sequence[HardwareGpu],
        known: Sequence[HardwareGpu] | None = None,
        *,
        foreign: str = "",
    ) -> DesiredConfig | None:
        """Return the requested configuration if it is valid, else `current`, else the last valid one, else None.

        current: the configuration in force so far; None at a first start. known: the GPUs that `current` is applied
        to, if they are not `gpus`. foreign: as in `choose`.
        """
        problem, wanted = "", current
        if self._source.is_known:
            source, options = self._source, self._options
            # NVIDIA's label may be there for NVIDIA's plugin.
            label = source.own_label if current == config_choice.BORROWED else source.label
            decision = choose(
                current, source.entries, label=label, options=options, borrows=source.is_borrowing, foreign=foreign
            )
            problem, wanted = decision.problem, decision.in_force
        cached, self._resolved = self._resolved, {}
        for config in dict.fromkeys(filter(None, (wanted, current))):
            application = config, tuple(gpus if known is None or config != current else known)
            # In a thread, and once: the text is not ours and may be long.
            if application not in cached:
                try:
                    cached[application] = await asyncio.to_thread(resolve, *application, self._options)
                except errors.ConfigError as error:
                    cached[application] = error
            resolved = self._resolved[application] = cached[application]
            if isinstance(resolved, DesiredConfig):
                if self.desired is None or self.desired.config != resolved.config:
                    extra = {"config": resolved.config.name, "warnings": list(resolved.warnings)}
                    logger.info("Selected a configuration", extra=extra)
                self.desired = resolved
                break
            problem = problem or str(resolved)
        if problem and problem != self.problem:
            logger.warning("The configuration cannot be applied", extra={"err": problem})
            self._refused(problem)
        self.problem = problem
        return self.desired
