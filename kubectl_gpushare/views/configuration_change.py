"""Derives the changes that a configuration makes on a node, GPU by GPU, from its GPUNode. Pure.

A GPU in MIG mode is left out if the GPUNode does not list its MIG devices and the configuration does not partition it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from gpushare import contract, errors, isolation
from gpushare.allocation import ONLY_ARBITER
from gpushare.config import config_choice, config_file, node_settings
from gpushare.config.config_choice import ActiveConfig
from gpushare.config.model import Config
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.mig import catalogue
from gpushare.modes import device_resources, hardware_gpu, mode_plan
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice
from kubectl_gpushare.views import config_sentences, gpu_summary


def lines(node: GpuNode, text: str, *, strict: bool = False) -> Iterator[str]:
    """Yield a line per GPU, then the warnings. Raises ConfigError if the node cannot have this configuration."""
    config = config_file.read(text)
    plan = planned(node, config, strict=strict)
    for gpu in sorted(node.gpus, key=lambda gpu: gpu.index):
        yield f"GPU {gpu.index} ({gpu.model}, {gpu.uuid}): {_change(node, gpu, plan.assignments.get(gpu.uuid))}"
    for warning in plan.warnings:
        yield f"warning: {warning}"


def planned(node: GpuNode, config: Config, *, strict: bool = False) -> mode_plan.ModePlan:
    """Return the GPUs' modes, and all warnings. Raises ConfigError if the GPUs cannot have them."""
    if strict:
        config = node_settings.restricted(config)
    settings = node_settings.effective(config, strict=strict)
    gpus = [_gpu(gpu) for gpu in node.gpus]
    if settings.mig_strategy != device_resources.STRATEGY_NONE:
        cut = [_is_cut(config, gpu) for gpu in gpus]
        known = [not gpu.mig_enabled or bool(gpu.mig_devices) for gpu in gpus]
        gpus = [gpu for gpu, *signs in zip(gpus, cut, known, strict=True) if any(signs)]
    plan = mode_plan.plan(config, gpus, mig_strategy=settings.mig_strategy)
    return mode_plan.ModePlan(
        plan.assignments, (*config.warnings, *plan.warnings, *node_settings.ignored_until_restart(config))
    )


def _change(node: GpuNode, gpu: Gpu, after: Assignment | None) -> str:
    if after is None:
        return "stays mig, with the MIG devices that it has"
    wanted = after.partition.wanted if after.partition is not None else None
    unsure = wanted and gpu.mode is after.mode and not gpu.mig_profiles
    if after.mode is gpu.mode and not unsure and wanted in (None, _counted(gpu.mig_profiles)):
        return f"stays {after}{_changed_isolations(gpu, after)}"
    users = [
        f"{entry.pod.namespace}/{entry.pod.name}"
        for entry in node.allocations
        if gpu.uuid in entry.gpu_uuids and not entry.id.startswith(contract.BACKFILL_PREFIX)
    ]
    waits = f", once these pods have ended: {', '.join(sorted(users))}" if users else ""
    devices = " + ".join(f"{count} × {name}" for name, count in _counted(gpu.mig_profiles))
    before = f"{gpu.mode}, {devices}" if devices else str(gpu.mode)
    return f"{before} → {after}{waits}" + (", if that is not so already" if unsure else "")


def _changed_isolations(gpu: Gpu, after: Assignment) -> str:
    """Return a clause about the isolations that new shares may have, if they differ from what the GPU offers now."""
    allowed = after.isolations or ONLY_ARBITER
    is_same = {*allowed} == {*gpu.isolations} and after.sm_partitions == gpu.sm_partitions
    if after.mode is not Mode.FRACTIONAL or is_same:
        return ""
    later, now = isolation.offers(allowed, after.sm_partitions), isolation.offers(gpu.isolations, gpu.sm_partitions)
    return f", with isolation {later} as far as the GPU can, now {now or 'none'}"


def _counted(profiles: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(collections.Counter(profiles).items()))


def _is_cut(config: Config, gpu: HardwareGpu) -> bool:
    if isinstance(config.mig, str):
        return gpu.mig_capable
    return any(entry.applies_to(index=gpu.index, hardware=None) for entry in config.mig)


def _gpu(gpu: Gpu) -> HardwareGpu:
    geometry = catalogue.of_gpu(gpu.model, gpu.memory_bytes)
    return HardwareGpu(
        gpu.uuid,
        gpu.index,
        gpu.model,
        mig_capable=geometry is not None or gpu.mode is Mode.MIG,
        mig_enabled=gpu.mode is Mode.MIG,
        mig_devices=tuple(
            HardwareMigDevice(f"MIG {index} of {gpu.uuid}", index, kind) for index, kind in enumerate(gpu.mig_profiles)
        ),
        geometry=geometry,
        most_mps_clients=hardware_gpu.max_mps_clients(gpu.compute_capability) if any(gpu.compute_capability) else None,
        memory_is_known=gpu.memory_bytes > 0,
    )


def text_of(text: str, entry: str) -> str:
    """Return the configuration, in a manifest that of the `entry`. Raises ConfigError."""
    manifest = config_sentences.read_manifest(text)
    return text if manifest is None else manifest.entry(entry)


Labels = Mapping[str, str]
Entries = Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEffect:
    """A node that would follow another configuration, in lines; or the `problem` why the node would follow none."""

    lines: tuple[str, ...]
    problem: str = ""


def of_entries(
    nodes: Iterable[GpuNode], labels: Mapping[str, Labels], before: Entries, after: Entries
) -> list[NodeEffect]:
    known = sorted((node for node in nodes if node.name in labels), key=lambda node: gpu_summary.natural(node.name))
    return [
        _effect(node, followed)
        for node in known
        if (followed := _followed(after, labels[node.name])) != _followed(before, labels[node.name])
    ]


def of_labels(node: GpuNode, after: Labels, entries: Entries) -> NodeEffect:
    return _effect(node, _followed(entries, after))


def _followed(entries: Entries, labels: Labels) -> ActiveConfig | str:
    label = config_choice.label_of(labels)
    built_in = config_choice.built_in(None, entries, label=label)
    if built_in is not None:
        return built_in
    try:
        name = config_choice.select(entries, label=label)
    except errors.ConfigError as error:
        return str(error)
    return ActiveConfig(name, entries.get(name, ""))


def _effect(node: GpuNode, followed: ActiveConfig | str) -> NodeEffect:
    try:
        if isinstance(followed, ActiveConfig):
            changes = [f"  {change}" for change in lines(node, followed.text)]
            return NodeEffect((f"{node.name} would follow {followed.name}:", *changes))
        problem = followed
    except errors.ConfigError as error:
        problem = str(error)
    return NodeEffect((f"warning: {node.name} would stay as it is: {problem}",), problem)
