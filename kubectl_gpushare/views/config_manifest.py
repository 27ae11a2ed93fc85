"""Reads the ConfigMaps of a manifest, which may have several documents, Lists, and other objects. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare import errors
from gpushare.config import yaml_tree
from gpushare.config.yaml_tree import Item

_SHOWN: Final = 20
_LISTS: Final = ("List", "ConfigMapList")


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
            raise errors.ConfigError(
                f"{name} is an entry of several ConfigMaps ({names}): give a file with one of them"
            )
        return owners[0].entries[name]


def read(text: str) -> ConfigManifest | None:
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
    return ConfigManifest(tuple(maps), tuple(problems[:_SHOWN]), warnings)


def _objects(root: Item) -> Iterator[Item]:
    listed = _mapping(root).get("items") if _kind(root) in _LISTS else None
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
