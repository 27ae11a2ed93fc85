"""Describes a configuration file in sentences. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from gpushare import errors
from gpushare.config import config_file, flags, model, node_settings
from gpushare.config.model import Config, Flags
from gpushare.gpunode import Mode
from gpushare.mig import catalogue
from gpushare.modes import device_resources, hardware_gpu
from gpushare.modes.device_resources import SharedResource
from kubectl_gpushare.views import config_manifest


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """One configuration: its effect, or the error in it; `warnings`: a sentence for each part without effect.

    With neither summary nor problem, it is a whole file, and has warnings about it.
    """

    name: str
    summary: str = ""
    problem: str = ""
    warnings: tuple[str, ...] = ()


def checked(name: str, text: str, *, strict: bool = False, is_for_known_gpus: bool = False) -> Iterator[Checked]:
    """Yield the configuration in `text`; if that is a manifest, each entry of each ConfigMap in it.

    strict: without gpushare's additions to NVIDIA's format. is_for_known_gpus: a MIG profile that the catalogue lacks
    is a problem, not a warning.
    """
    try:
        manifest = config_manifest.read(text)
    except errors.ConfigError as error:
        yield Checked(name, problem=str(error))
        return
    if manifest is None:
        yield _checked(name, text, strict, is_for_known_gpus)
        return
    yield Checked(name, warnings=manifest.warnings)
    for problem in manifest.problems:
        yield Checked(name, problem=problem)
    for config_map in manifest.maps:
        shown = name if len(manifest.maps) == 1 else f"{name}: {config_map.name}"
        for key, entry in config_map.entries.items():
            yield _checked(f"{shown}: {key}", entry, strict, is_for_known_gpus)


def _checked(name: str, text: str, strict: bool, is_for_known_gpus: bool) -> Checked:
    try:
        config = config_file.read(text)
        if strict:
            config = node_settings.restricted(config)
        settings = node_settings.effective(config, strict=strict)
    except errors.ConfigError as error:
        return Checked(name, problem=str(error))
    mig = catalogue.without_node(config.mig)
    problem = mig.problem or _too_many(config) or (mig.unknown[0] if is_for_known_gpus and mig.unknown else "")
    if problem:
        return Checked(name, problem=problem)
    shadowed = device_resources.shadowed(device_resources.shared_resources(config.sharing)).values()
    warnings = (*config.warnings, *shadowed, *mig.warnings, *mig.unknown, *node_settings.ignored_until_restart(config))
    return Checked(name, summary(config, settings), warnings=warnings)


def _too_many(config: Config) -> str:
    """Return why MPS cannot share any GPU between so many processes; empty if it can for some."""
    return next(
        (
            f"{entry.path}.replicas {entry.replicas}: at most {hardware_gpu.MAX_MPS_CLIENTS} processes can share a GPU "
            "by MPS"
            for entry in device_resources.shared_resources(config.sharing)
            if entry.mode is Mode.MPS and entry.replicas > hardware_gpu.MAX_MPS_CLIENTS
        ),
        "",
    )


def effective(config: Config) -> dict[str, Any]:
    """Return the same configuration with all defaults written out."""
    values = node_settings.values_of(config)
    filled = {flag.key: values[flag.key] for flag in flags.IN_FILE if values[flag.key] or not flag.omitted}
    return model.as_document(dataclasses.replace(config, flags=Flags(filled, frozenset(flags.SECTIONS))))


def summary(config: Config, settings: node_settings.NodeSettings) -> str:
    """Return its effect: `MPS: all of nvidia.com/gpu, each 2 times as nvidia.com/gpu; MIG strategy mixed`."""
    entries = device_resources.shared_resources(config.sharing)
    shadowed = device_resources.shadowed(entries)
    parts = [_shared(entry) for entry in entries if entry.path not in shadowed]
    if isinstance(config.mig, str):
        parts.append(f"MIG: {config.mig}")
    for entry in () if isinstance(config.mig, str) else config.mig:
        devices = "all GPUs" if entry.devices is None else f"GPU {', '.join(map(str, entry.devices))}"
        devices += f" with PCI number {' or '.join(entry.filters)}" if entry.filters else ""
        wanted = " + ".join(f"{count} × {kind}" for kind, count in entry.wanted.items() if count) or "no MIG devices"
        parts.append(f"MIG: {wanted} on {devices}" if entry.enabled else f"MIG off on {devices}")
    if not parts:
        parts.append("every device whole")
    if settings.mig_strategy != "none":
        parts.append(f"MIG strategy {settings.mig_strategy}")
    return "; ".join(parts)


def _shared(entry: SharedResource) -> str:
    devices = entry.devices.of(entry.resource)
    if entry.mode is Mode.FRACTIONAL:
        return f"by annotation: {devices}"
    word = "MPS" if entry.mode is Mode.MPS else str(entry.mode)
    return f"{word}: {devices}, each {entry.replicas} times as {entry.advertised}"
