"""Describes a configuration file, or each in a manifest (of documents, Lists and other objects), in sentences. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import errors, isolation
from gpushare.allocation import ONLY_ARBITER
from gpushare.config import config_file, flags, model, node_settings, yaml_tree
from gpushare.config.model import Config, Flags
from gpushare.config.yaml_tree import Item
from gpushare.gpunode import Mode
from gpushare.mig import catalogue
from gpushare.modes import device_resources, hardware_gpu
from gpushare.modes.device_resources import SharedResource


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigMapEntries:
    """A ConfigMap: its name, or its number in the file, and its entries."""

    name: str
    entries: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigManifest:
    """The readable ConfigMaps, and sentences about the others, and about entries without effect."""

    maps: tuple[ConfigMapEntries, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def entry(self, name: str) -> str:
        """Return the text of that entry. Raises ConfigError unless one ConfigMap has it."""
        if self.problems:
            raise errors.ConfigError(self.problems[0])
        owners = [config_map for config_map in self.maps if name in config_map.entries]
        if not owners:
            known = ", ".join(key for config_map in self.maps for key in config_map.entries) or "none"
            raise errors.ConfigError(f"the ConfigMap has {known}: name one of them with --entry")
        if len(owners) > 1:
            names = ", ".join(config_map.name for config_map in owners)
            raise errors.ConfigError(f"{name} is in several ConfigMaps ({names}): give a file with one of them")
        return owners[0].entries[name]


def read_manifest(text: str) -> ConfigManifest | None:
    """Return the manifest in `text`; None if that is a configuration itself. Raises ConfigError if it is not YAML."""
    documents = yaml_tree.documents(text)
    objects = [item for document in documents for item in _objects(document.root)]
    if not any(_kind(item) for item in objects):
        return None
    maps: list[ConfigMapEntries] = []
    problems: list[str] = []
    for item in objects:
        try:
            if not _kind(item):
                raise item.error("has no kind: put the configuration under data of a ConfigMap")
            if _kind(item) == "ConfigMap":
                maps.append(ConfigMapEntries(_name(item) or f"ConfigMap {len(maps) + 1}", _entries(item)))
        except errors.ConfigError as error:
            problems.append(str(error))
    if not maps and not problems:
        problems.append(_mapping(objects[0])["kind"].says("is neither a configuration file nor a ConfigMap"))
    warnings = tuple(warning for document in documents for warning in document.warnings)
    return ConfigManifest(tuple(maps), tuple(problems[:20]), warnings)


def _objects(root: Item) -> Iterator[Item]:
    listed = _mapping(root).get("items") if _kind(root) in {"List", "ConfigMapList"} else None
    if listed is not None and isinstance(listed.value, tuple):
        yield from listed.value
    elif root.value is not None:
        yield root


def _mapping(item: Item) -> Mapping[str, Item]:
    return item.value if isinstance(item.value, Mapping) else {}


def _kind(item: Item) -> str:
    kind = _mapping(item).get("kind")
    return kind.value if kind is not None and isinstance(kind.value, str) else ""


def _name(item: Item) -> str:
    metadata = _mapping(item).get("metadata")
    name = _mapping(metadata).get("name") if metadata is not None else None
    return errors.shortened(name.value) if name is not None and isinstance(name.value, str) else ""


def _entries(item: Item) -> dict[str, str]:
    data = _mapping(item).get("data")
    entries = yaml_tree.plain(data) if data is not None else None
    if entries is None or entries == {}:
        raise item.error("the ConfigMap has no entry under data: add one for each configuration")
    if data is None or not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
        raise (data or item).error("has an entry that is not text: put | after its name")
    return entries


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """One configuration, or a whole file, which has neither summary nor problem."""

    name: str
    summary: str = ""  # its effect
    problem: str = ""  # the error in it
    warnings: tuple[str, ...] = ()  # a sentence for each part without effect


def checked(name: str, text: str, *, strict: bool = False, is_for_known_gpus: bool = False) -> Iterator[Checked]:
    """Yield the configuration in `text`; if that is a manifest, each entry of each ConfigMap in it.

    strict: without gpushare's additions to NVIDIA's format. is_for_known_gpus: a MIG profile that the catalogue lacks
    is a problem, not a warning.
    """
    try:
        manifest = read_manifest(text)
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
    too_many = next(
        (
            f"{entry.path}.replicas {entry.replicas}: at most {hardware_gpu.MAX_MPS_CLIENTS} processes can share a GPU "
            "by MPS"
            for entry in device_resources.shared_resources(config.sharing)
            if entry.mode is Mode.MPS and entry.replicas > hardware_gpu.MAX_MPS_CLIENTS
        ),
        "",
    )
    problem = mig.problem or too_many or (mig.unknown[0] if is_for_known_gpus and mig.unknown else "")
    if problem:
        return Checked(name, problem=problem)
    shadowed = device_resources.shadowed(device_resources.shared_resources(config.sharing)).values()
    warnings = (*config.warnings, *shadowed, *mig.warnings, *mig.unknown, *node_settings.ignored_until_restart(config))
    return Checked(name, summary(config, settings), warnings=warnings)


def effective(config: Config) -> dict[str, Any]:
    values = node_settings.values_of(config)
    filled = {flag.key: values[flag.key] for flag in flags.IN_FILE if values[flag.key] or not flag.omitted}
    return model.as_document(dataclasses.replace(config, flags=Flags(filled, frozenset(flags.SECTIONS))))


def summary(config: Config, settings: node_settings.NodeSettings) -> str:
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
        offered = isolation.offers(entry.isolations, entry.sm_partitions)
        return f"by annotation: {devices}{'' if entry.isolations == ONLY_ARBITER else f', with isolation {offered}'}"
    word = "MPS" if entry.mode is Mode.MPS else str(entry.mode)
    return f"{word}: {devices}, each {entry.replicas} times as {entry.advertised}"
