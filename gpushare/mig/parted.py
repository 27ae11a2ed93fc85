"""The entries of a config of NVIDIA's mig-parted, as values. A configuration of gpushare contains a list of them.

    - device-filter: ["0x233010DE"]   # optional
      devices: all                    # or a list of indices
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "3g.40gb": 1}

Parsing is strict: an unknown field is an error. A profile has a meaning only on a GPU, so here only its form is
checked. The caller parses YAML or JSON and passes the result. A name such as `all-1g.10gb` stands for a generated list.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gpushare import errors
from gpushare.mig import profile
from gpushare.mig.profile import Profile

ALL: Final = "all"
ALL_DISABLED: Final = "all-disabled"
ALL_ENABLED: Final = "all-enabled"
ALL_BALANCED: Final = "all-balanced"

# GPU slices of the model: how many instances of how many slices.
_BALANCED: Final[Mapping[int, Mapping[int, int]]] = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
_ENTRY_FIELDS: Final = ("device-filter", "devices", "mig-enabled", "mig-devices")
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", re.ASCII)


class DeviceIdError(errors.GpushareError):
    """A text that is not a pair of PCI IDs."""


@dataclasses.dataclass(frozen=True, slots=True)
class PciPair:
    """A device ID and its vendor ID."""

    device: int
    vendor: int

    def __str__(self) -> str:
        return f"0x{self.device:04X}{self.vendor:04X}"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceId:
    """A model; `subsystem` is the board, None if absent."""

    model: PciPair
    subsystem: PciPair | None = None

    def __str__(self) -> str:
        return f"{self.model}" if self.subsystem is None else f"{self.model}:{self.subsystem}"

    def matches(self, hardware: DeviceId) -> bool:
        """Whether this, as a filter, matches `hardware`; without a subsystem it matches every board."""
        return self.model == hardware.model and (self.subsystem is None or self.subsystem == hardware.subsystem)


def parse_device_id(text: str) -> DeviceId:
    """Return the IDs in a text. Raises DeviceIdError."""
    parts = text.split(":")
    if len(parts) > 2:
        said = "write 0xDDDDVVVV, or 0xDDDDVVVV:0xSSSSVVVV with subsystem"
        raise DeviceIdError(f"invalid DeviceID format {errors.quoted(text)}: {said}")
    model = _pair(parts[0], "DeviceID", text)
    return DeviceId(model, _pair(parts[1], "Subsystem", text) if len(parts) == 2 else None)


def device_id_of_nvml(device_id: int, subsystem_id: int = 0) -> DeviceId:
    """Return the IDs in NVML's PCI information, which has both of a pair in one number."""
    subsystem = PciPair(subsystem_id >> 16, subsystem_id & 0xFFFF) if subsystem_id else None
    return DeviceId(PciPair(device_id >> 16, device_id & 0xFFFF), subsystem)


def _pair(word: str, what: str, text: str) -> PciPair:
    number = int(word, 16 if word[:2].lower() == "0x" else 10) if _NUMBER.fullmatch(word) else None
    if number is None or number > 0xFFFFFFFF:
        said = f"{errors.quoted(word)} is not a number of 32 bits such as 0x20B510DE"
        raise DeviceIdError(f"unable to create {what} from {errors.quoted(text)}: {said}")
    return PciPair(number >> 16, number & 0xFFFF)


class PartedError(errors.GpushareError):
    """An invalid entry; the message names the place, the value and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class MigConfigEntry:
    """The target state of a set of GPUs."""

    devices: tuple[int, ...] | None  # indices, None for all
    enabled: bool
    wanted: Mapping[str, int] = dataclasses.field(default_factory=dict)  # profile names with counts, as written
    filters: tuple[str, ...] = ()  # empty matches every model

    def applies_to(self, *, index: int, hardware: DeviceId | None) -> bool:
        """Whether the entry is about that GPU."""
        if self.devices is not None and index not in self.devices:
            return False
        return not self.filters or (
            hardware is not None and any(parse_device_id(text).matches(hardware) for text in self.filters)
        )


Config = tuple[MigConfigEntry, ...]


def read_entry(document: Any, *, where: str = "the entry") -> MigConfigEntry:
    """Read one entry of a config. Raises PartedError."""
    fields = _mapping(document, where)
    unknown = next((key for key in fields if key not in _ENTRY_FIELDS), None)
    if unknown is not None:
        said = f"has the unexpected field {_shown(unknown)}: its fields are {', '.join(_ENTRY_FIELDS)}"
        raise PartedError(f"{where} {said}")
    for required in ("devices", "mig-enabled"):
        if required not in fields:
            raise PartedError(f"{where} lacks {required}: it is required")
    enabled = fields["mig-enabled"]
    if not isinstance(enabled, bool):
        raise PartedError(f"{where}.mig-enabled is {_shown(enabled)}: write true or false")
    wanted = read_wanted(fields.get("mig-devices"), where=f"{where}.mig-devices")
    if enabled and wanted is None:
        raise PartedError(f"{where} has mig-enabled: true and no mig-devices: list them, or write {{}} for none")
    if not enabled and wanted:
        raise PartedError(f"{where} has mig-devices and mig-enabled: false: remove mig-devices, or enable MIG")
    devices, filters = _devices(fields["devices"], f"{where}.devices"), fields.get("device-filter")
    listed = [] if filters in (None, "") else [filters] if isinstance(filters, str) else filters
    if not isinstance(listed, list) or not all(isinstance(pci_number, str) for pci_number in listed):
        said = 'write PCI numbers such as "0x233010DE", or a list of them'
        raise PartedError(f"{where}.device-filter is {_shown(filters)}: {said}")
    return MigConfigEntry(devices, enabled, wanted or {}, tuple(listed))


def read_wanted(document: Any, *, where: str = "mig-devices") -> dict[str, int] | None:
    """Read profile names with counts; None if absent. Raises PartedError."""
    if document is None:
        return None
    wanted: dict[str, int] = {}
    for name, count in _mapping(document, where).items():
        try:
            profile.parse(name)
        except profile.ProfileError as error:
            raise PartedError(f"{where}: {error}") from error
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PartedError(f"{where}.{name} is {_shown(count)}: write a count, 0 or more")
        wanted[name] = count
    if wanted and not any(wanted.values()):
        raise PartedError(f"{where} has only counts of 0: write {{}} for no instance, or a count above 0")
    return wanted


def written(entry: MigConfigEntry) -> dict[str, Any]:
    """Return the entry as in the file."""
    document: dict[str, Any] = {"devices": ALL if entry.devices is None else list(entry.devices)}
    document["mig-enabled"] = entry.enabled
    if entry.enabled:
        document["mig-devices"] = dict(entry.wanted)
    if entry.filters:
        document["device-filter"] = list(entry.filters)
    return document


def _devices(value: Any, where: str) -> tuple[int, ...] | None:
    if value == ALL:
        return None
    if isinstance(value, list) and all(type(index) is int and index >= 0 for index in value):
        return tuple(value)
    raise PartedError(f"{where} is {_shown(value)}: write all, or a list of the GPUs' indices such as [0, 1]")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise PartedError(f"{where} is {_shown(value)}: write a mapping")
    return value


def _shown(value: Any) -> str:
    return errors.quoted(str(value)) if value is not None else "missing"


@dataclasses.dataclass(frozen=True, slots=True)
class MigModel:
    """A GPU model of the node."""

    device_id: str  # its PCI IDs, as a filter
    most: Mapping[Profile, int]  # how many of each profile fit


def is_generated_name(name: str) -> bool:
    """Whether a config of some node may have this name."""
    if name in {ALL_DISABLED, ALL_ENABLED, ALL_BALANCED}:
        return True
    try:
        profile.parse(name.removeprefix("all-").replace("gb.", "gb+", 1))
    except profile.ProfileError:
        return False
    return name.startswith("all-")


def generated_configs(models: Sequence[MigModel]) -> dict[str, Config]:
    """Return all configs by name, for a node with these models."""
    by_name: dict[str, Config] = {
        ALL_DISABLED: (MigConfigEntry(devices=None, enabled=False),),
        ALL_ENABLED: (MigConfigEntry(devices=None, enabled=True),),
    }
    mix = balanced_config(models)
    if mix:
        by_name[ALL_BALANCED] = mix
    ids_of: dict[Profile, dict[int, set[str]]] = {}
    for model in models:
        for kind, most in model.most.items():
            # Profiles that are parts of GPU instances only make sense in a config written by hand.
            if not profile.is_part_of_instance(kind.compute_slices, kind.gpu_slices):
                ids_of.setdefault(kind, {}).setdefault(most, set()).add(model.device_id)
    for kind in sorted(ids_of, key=str):
        by_name[f"all-{profile.normalised(str(kind))}"] = tuple(
            _enabled({str(kind): most}, ids, models) for most, ids in sorted(ids_of[kind].items())
        )
    return by_name


def _enabled(wanted: Mapping[str, int], device_ids: Iterable[str], models: Sequence[MigModel]) -> MigConfigEntry:
    """Return the entry with these instances for these models, by a filter if the node has several."""
    filters = tuple(sorted(device_ids)) if len({model.device_id for model in models}) > 1 else ()
    return MigConfigEntry(devices=None, enabled=True, wanted=wanted, filters=filters)


def balanced_config(models: Sequence[MigModel]) -> Config:
    """Return two small, one middle and, on GPUs of seven slices, one large instance; empty for models without these."""
    by_id = {model.device_id: model for model in sorted(models, key=lambda model: model.device_id)}
    mixes = {device_id: _mix(model) for device_id, model in by_id.items()}
    return tuple(_enabled(wanted, [device_id], models) for device_id, wanted in mixes.items() if wanted)


def _mix(model: MigModel) -> dict[str, int]:
    by_slices: dict[int, Profile] = {}
    for kind, most in model.most.items():
        whole = kind.plain and kind.compute_slices == kind.gpu_slices
        known = by_slices.get(kind.gpu_slices)
        # Of two with the same slices, take the one with less memory, of which more fit.
        if whole and (known is None or most > model.most[known]):
            by_slices[kind.gpu_slices] = kind
    counts = _BALANCED.get(max(by_slices, default=0), {})
    if any(slices not in by_slices for slices in counts):
        return {}
    return {str(by_slices[slices]): count for slices, count in counts.items()}
