"""Parses the text of a configuration file into a `Config`; any error rejects the whole file.

It reads files as NVIDIA's plugin does, with two differences that valid files never meet. An unknown field is a warning,
and an error under `sharing`, where it would change the use of a GPU. And errors name line and key. NVIDIA's plugin
ignores the case of the keys of some objects, and of others not: see `any_case`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gpushare import contract, errors
from gpushare.allocation import ONLY_ARBITER, Isolation
from gpushare.config import flags as flag_table
from gpushare.config import node_settings, value_parsers, yaml_tree
from gpushare.config.flags import FlagValue
from gpushare.config.model import (
    ALL,
    VERSION,
    Config,
    Devices,
    Flags,
    FractionalResource,
    Imex,
    ReplicatedResource,
    ReplicatedResources,
    ResourceRule,
    Resources,
    Sharing,
)
from gpushare.config.yaml_tree import Item, below, located, scalar_text
from gpushare.mig import parted

MIG_CONFIGS: Final = "mig-configs"
INTERVALS: Final = ("default", "short", "medium", "long")
# Per node. The kubelet accepts a list of 4 MiB, and a device takes about 60 bytes of it.
MAX_DEVICES: Final = 50_000


class Fields:
    """The entries of one mapping of the file. null counts as an empty mapping.

    warnings: collects unknown keys; None: they are errors. guarded: keys whose misspelling is an error, because without
    them GPUs are used for something else.
    """

    def __init__(
        self,
        item: Item,
        known: Sequence[str],
        warnings: list[str] | None,
        *,
        any_case: bool = False,
        guarded: Collection[str] = (),
    ) -> None:
        if item.value is not None and not isinstance(item.value, Mapping):
            raise item.error(f"is not a mapping: write its keys below it, such as {known[0]}: …")
        self._at = item
        self._items: dict[str, Item] = {}
        names = {name.lower(): name for name in known} if any_case else {name: name for name in known}
        for key, value in (item.value or {}).items():
            name = names.get(key.lower() if any_case else key)
            if name is not None:
                self._items[name] = value
                continue
            lowered = {known_key.lower(): known_key for known_key in known}
            nearest = difflib.get_close_matches(key.lower()[:64], lowered, n=1, cutoff=0.75)
            meant = lowered[nearest[0]] if nearest else ""
            is_error = warnings is None or meant in guarded
            remedy = f"{'remove it' if is_error else 'it has no effect'}; known keys: {', '.join(known)}"
            hint = f"did you mean {meant}?" if meant else remedy
            sentence = f"{located(value.path, value.line)} is unknown: {hint}"
            if warnings is None or is_error:
                raise errors.ConfigError(sentence)
            warnings.append(sentence)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def get(self, key: str) -> Item | None:
        """Return the value, or None if the key is absent or null."""
        item = self._items.get(key)
        return None if item is None or item.value is None else item

    def at(self, key: str) -> Item:
        """Return the value; if absent, a null item at the mapping's line."""
        return self._items.get(key) or Item(below(self._at.path, key), self._at.line, None)

    def missing(self, problem: str) -> errors.ConfigError:
        """Return the error that the mapping lacks a key."""
        return self._at.error(problem)

    def flag(self, key: str) -> bool | None:
        """Return true or false, or None if absent."""
        item = self.get(key)
        return None if item is None else _truth(item)


def _truth(item: Item) -> bool:
    if not isinstance(item.value, bool):
        raise item.error("is neither true nor false")
    return item.value


def _text(item: Item) -> str:
    if not isinstance(item.value, str):
        raise item.error("is not text: put it in quotes")
    return item.value


def _any_text(item: Item) -> str:
    return scalar_text(item.value) if isinstance(item.value, (bool, int, float)) else _text(item)


def _whole(item: Item) -> int:
    if isinstance(item.value, bool) or not isinstance(item.value, int):
        raise item.error("is not a whole number")
    return item.value


def _entries(item: Item) -> tuple[Item, ...]:
    if item.value is None:
        return ()
    if not isinstance(item.value, tuple):
        raise item.error("is not a list: start each entry with '- '")
    return item.value


def read(text: str) -> Config:
    """Return the configuration in `text`, YAML or JSON. Raises ConfigError naming line and key."""
    parsed = yaml_tree.parse(text)
    warnings = list(parsed.warnings)
    if parsed.root.value is None:
        warnings.append(f"the file is empty, so every GPU is exclusive: write version: {VERSION} if that is intended")
    _refuse_other_forms(parsed.root)
    known = ("version", "flags", "resources", "sharing", "imex", "mig")
    file = Fields(parsed.root, known, warnings, any_case=True, guarded=("sharing", "mig"))
    version = file.at("version")
    written = _any_text(version) if version.value is not None else ""
    if written not in ("", VERSION):
        raise version.error(f"unknown version: {written}: write {VERSION}")
    config = Config(
        version=VERSION,
        flags=flags(file.at("flags"), warnings),
        resources=_resources(file.at("resources"), warnings),
        sharing=_sharing(file.at("sharing")),
        imex=imex(file.at("imex"), warnings),
        mig=_mig(file.at("mig")),
    )
    return dataclasses.replace(config, warnings=tuple(warnings))


def _refuse_other_forms(item: Item) -> None:
    """Reject a file of mig-parted, which would otherwise be read as an empty one: every GPU whole."""
    layouts = item.value.get(MIG_CONFIGS) if isinstance(item.value, Mapping) else None
    if layouts is not None:
        names = [errors.shortened(name) for name in layouts.value] if isinstance(layouts.value, Mapping) else []
        of_them = f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""
        raise layouts.error(
            "belongs to a mig-parted file, which has a list of entries per layout: write the list of one"
            f"{of_them} as mig"
        )


def flags(item: Item, warnings: list[str]) -> Flags:
    """Read `flags`, with its nested objects."""
    top = [flag.key for flag in flag_table.IN_FILE if "." not in flag.key]
    file = Fields(item, (*top, *flag_table.SECTIONS), warnings, any_case=True)
    items = {key: file.at(key) for key in top}
    sections = frozenset(name for name in flag_table.SECTIONS if file.get(name) is not None)
    for section in sorted(sections):
        keys = [flag.key.partition(".")[2] for flag in flag_table.IN_FILE if flag.key.startswith(f"{section}.")]
        nested = Fields(file.at(section), keys, warnings, any_case=True)
        items |= {f"{section}.{key}": nested.at(key) for key in keys}
    values = {key: _flag(flag_table.BY_KEY[key].kind, item) for key, item in items.items() if item.value is not None}
    return Flags(values, sections)


def _flag(kind: flag_table.FlagType, item: Item) -> FlagValue:
    match kind:
        case flag_table.FlagType.BOOL:
            return _truth(item)
        case flag_table.FlagType.DURATION:
            return _duration(item)
        case flag_table.FlagType.TEXTS:
            return tuple(map(_text, item.value)) if isinstance(item.value, tuple) else (_text(item),)
    return _any_text(item)


def _duration(item: Item) -> int:
    if isinstance(item.value, str):
        try:
            return value_parsers.parse_duration(item.value)
        except errors.ConfigError as error:
            raise item.error(str(error)) from error
    if isinstance(item.value, float) and abs(item.value) < 2**63:
        return int(item.value)
    nanoseconds = _whole(item)
    if abs(nanoseconds) > value_parsers.FOREVER_NANOSECONDS:
        raise item.error('exceeds the maximum duration: write "infinite"')
    return nanoseconds


def _resources(item: Item, warnings: list[str]) -> Resources:
    file = Fields(item, ("gpus", "mig"), warnings, any_case=True)

    def rule(item: Item) -> ResourceRule:
        file = Fields(item, ("pattern", "name"), warnings)
        for key in ("pattern", "name"):
            if key not in file:
                raise item.error(f"resources must have a '{key}' field set")
        return ResourceRule(_text(file.at("pattern")), _name(file.at("name")))

    def rules(key: str) -> tuple[ResourceRule, ...]:
        return tuple(map(rule, _entries(file.at(key))))

    return Resources(gpus=rules("gpus"), mig=rules("mig"))


def _sharing(item: Item) -> Sharing:
    file = Fields(item, ("timeSlicing", "mps", "fractional"), None, any_case=True)
    time_slicing = mps = None
    fractional: tuple[FractionalResource, ...] = ()
    if "timeSlicing" in file:
        time_slicing = replicated_resources(file.at("timeSlicing"), intervals=True)
    if file.get("mps") is not None:
        mps = replicated_resources(file.at("mps"))
        if mps.fail_requests_greater_than_one is None:  # by default: two replicas are no larger share
            mps = dataclasses.replace(mps, fail_requests_greater_than_one=True)
    if file.get("fractional") is not None:
        entries = _replicated(Fields(file.at("fractional"), ("resources",), None))
        fractional = tuple(map(_fractional_resource, entries))
    return Sharing(time_slicing, mps, fractional)


def _fractional_resource(item: Item) -> FractionalResource:
    file = Fields(item, ("name", "devices", "isolations", "smPartitions"), None)
    name, chosen = _name_and_devices(file)
    isolations: tuple[Isolation, ...] = ONLY_ARBITER
    if file.get("isolations") is not None:
        isolations = tuple(dict.fromkeys(map(_isolation, _entries(file.at("isolations")))))
        if not isolations:
            raise file.at("isolations").error("lists no isolation: list at least one, or remove it for arbiter")
    partitions = _sm_partitions(file.at("smPartitions"), isolations) if file.get("smPartitions") is not None else 0
    return FractionalResource(name, chosen, isolations, partitions)


def _sm_partitions(item: Item, isolations: Collection[Isolation]) -> int:
    count = _whole(item)
    if Isolation.MPS not in isolations:
        raise item.error("needs shares with the isolation mps: add mps to isolations, or remove smPartitions")
    if not 2 <= count <= contract.MAX_SM_PARTITIONS:
        raise item.error(f"is out of range: write 2 to {contract.MAX_SM_PARTITIONS}, or remove it for no partitions")
    largest = 100 // count  # request of a share, in percent
    if 100 // largest != count:
        raise item.error(f"fits no request in whole percent: write {100 // (largest + 1)}")
    return count


def _isolation(item: Item) -> Isolation:
    text = _text(item)
    if text not in set(Isolation):
        raise item.error(f"is not an isolation: write one of {', '.join(Isolation)}")
    return Isolation(text)


def replicated_resources(item: Item, *, intervals: bool = False) -> ReplicatedResources:
    """Read `sharing.timeSlicing` or `sharing.mps`. intervals: whether the length of a time slice is allowed."""
    file = Fields(item, ("renameByDefault", "failRequestsGreaterThanOne", "resources"), None)
    rename = file.flag("renameByDefault") or False
    entries = _replicated(file)
    return ReplicatedResources(
        resources=tuple(replicated_resource(entry, rename_by_default=rename, intervals=intervals) for entry in entries),
        rename_by_default=rename,
        fail_requests_greater_than_one=file.flag("failRequestsGreaterThanOne"),
    )


def _replicated(file: Fields) -> tuple[Item, ...]:
    entries = _entries(file.at("resources"))
    if not entries:
        raise file.missing("no resources specified: list at least one under resources")
    return entries


def replicated_resource(item: Item, *, rename_by_default: bool = False, intervals: bool = False) -> ReplicatedResource:
    """Read one entry of `resources`."""
    file = Fields(item, ("name", "rename", "devices", "replicas", *(["interval"] if intervals else [])), None)
    name, chosen = _name_and_devices(file)
    if "replicas" not in file:
        raise file.missing("no replicas specified")
    replicas = _whole(file.at("replicas"))
    if replicas < 2:
        raise file.at("replicas").error("number of replicas must be >= 2")
    counted = len(set(chosen.listed)) if chosen.listed is not None else chosen.count or 1
    if replicas * counted > MAX_DEVICES:
        most = f"{MAX_DEVICES // counted}{f' of {counted} devices' if counted > 1 else ''}"
        said = f"number of replicas must be <= {most}: a kubelet accepts at most {MAX_DEVICES} devices of a node"
        raise file.at("replicas").error(said)
    renamed = _name(file.at("rename")) if file.get("rename") is not None else None
    time_slice = file.get("interval")
    interval = "" if time_slice is None else _text(time_slice).lower()
    if time_slice is not None and interval not in INTERVALS:
        raise time_slice.error(f"is not a time slice: write one of {', '.join(INTERVALS)}")
    return ReplicatedResource(
        name=name,
        replicas=replicas,
        devices=chosen,
        rename=value_parsers.shared_name(name) if renamed is None and rename_by_default else renamed,
        interval=interval,
    )


def _name_and_devices(file: Fields) -> tuple[str, Devices]:
    if "name" not in file:
        raise file.missing("no resource name specified")
    return _name(file.at("name")), devices(file.at("devices")) if "devices" in file else ALL


def devices(item: Item) -> Devices:
    """Read `devices`: `all`, a count, or a list of indices and UUIDs."""
    if isinstance(item.value, tuple):
        return Devices(listed=tuple(_reference(entry) for entry in item.value))
    if isinstance(item.value, int) and not isinstance(item.value, bool):
        if item.value <= 0:
            raise item.error("a count of devices must be > 0")
        return Devices(count=item.value)
    if item.value == "all":
        return ALL
    if item.value is None or isinstance(item.value, str):
        raise item.error(f"devices set as '{item.value or ''}' but the only valid string input is 'all'")
    raise item.error("unsupported type for devices: write all, a count, or a list of indices and UUIDs")


def _reference(item: Item) -> str:
    value = item.value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        value = str(value)
    if not isinstance(value, str) or value_parsers.reference_kind(value) is None:
        said = 'write an index such as 0 or "0:1", or a UUID such as GPU-… or MIG-…'
        raise item.error(f"unsupported type for device in devices list: {said}")
    return value


def imex(item: Item, warnings: list[str]) -> Imex:
    """Read `imex` of NVIDIA's file: the channels to inject."""
    file = Fields(item, ("channelIDs", "required"), warnings, any_case=True)
    channels = file.get("channelIDs")
    identities = None if channels is None else tuple(_whole(entry) for entry in _entries(channels))
    if channels is not None and identities:
        try:
            node_settings.check_imex_channels(identities)
        except errors.ConfigError as error:
            raise channels.error(str(error)) from error
    return Imex(identities, file.flag("required"))


def _mig(item: Item) -> parted.Config | str:
    if not isinstance(item.value, str):
        return tuple(_mig_entry(entry) for entry in _entries(item))
    if not parted.is_generated_name(item.value):
        raise item.error(
            f"write {parted.ALL_DISABLED}, {parted.ALL_ENABLED}, {parted.ALL_BALANCED} or all-PROFILE such "
            f"as all-1g.10gb; or a list of entries with devices, mig-enabled and mig-devices"
        )
    return item.value


def _mig_entry(item: Item) -> parted.MigConfigEntry:
    try:
        entry = parted.read_entry(yaml_tree.plain(item), where=item.path)
        for text in entry.filters:
            parted.parse_device_id(text)
    except parted.PartedError as error:
        raise errors.ConfigError(f"line {item.line}: {error}" if item.line else str(error)) from error
    except parted.DeviceIdError as error:
        raise item.error(f"device-filter: {error}") from error
    return entry


def _name(item: Item) -> str:
    try:
        return value_parsers.parse_resource_name(_text(item))
    except errors.ConfigError as error:
        if item.value is None or not isinstance(item.value, str):
            raise
        raise item.error(str(error)) from error
