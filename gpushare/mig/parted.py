"""The entries of a config of NVIDIA's mig-parted, as values. A configuration of gpushare contains a list of them.

    - device-filter: ["0x233010DE"]   # optional
      devices: all                    # or a list of indices
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "3g.40gb": 1}

Parsing is strict: an unknown field is an error. A profile has a meaning only on a GPU, so here only its form is
checked. The caller parses YAML or JSON and passes the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpushare import errors
from gpushare.mig import device_id, profile
from gpushare.mig.device_id import DeviceId

ALL: Final = "all"
_ENTRY_FIELDS: Final = ("device-filter", "devices", "mig-enabled", "mig-devices")


class PartedError(errors.GpushareError):
    """An invalid entry; the message names the place, the value and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class MigConfigEntry:
    """The target state of a set of GPUs. devices: indices, None for all. filters: empty matches every model.

    wanted: profile names with counts, as written; empty for no instances, or MIG disabled.
    """

    devices: tuple[int, ...] | None
    enabled: bool
    wanted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    filters: tuple[str, ...] = ()

    def applies_to(self, *, index: int, hardware: DeviceId | None) -> bool:
        """Whether the entry is about that GPU."""
        if self.devices is not None and index not in self.devices:
            return False
        if not self.filters:
            return True
        return hardware is not None and any(device_id.parse(text).matches(hardware) for text in self.filters)


Config = tuple[MigConfigEntry, ...]


def read_entry(document: Any, *, where: str = "the entry") -> MigConfigEntry:
    """Read one entry of a config. Raises PartedError."""
    fields = _mapping(document, where)
    _no_others(fields, _ENTRY_FIELDS, where)
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
    return MigConfigEntry(
        devices=_devices(fields["devices"], f"{where}.devices"),
        enabled=enabled,
        wanted=wanted or {},
        filters=_filters(fields.get("device-filter"), f"{where}.device-filter"),
    )


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
    document: dict[str, Any] = {
        "devices": ALL if entry.devices is None else list(entry.devices),
        "mig-enabled": entry.enabled,
    }
    if entry.enabled:
        document["mig-devices"] = dict(entry.wanted)
    if entry.filters:
        document["device-filter"] = list(entry.filters)
    return document


def _devices(value: Any, where: str) -> tuple[int, ...] | None:
    if value == ALL:
        return None
    if isinstance(value, list) and all(_is_index(index) for index in value):
        return tuple(value)
    raise PartedError(f"{where} is {_shown(value)}: write all, or a list of the GPUs' indices such as [0, 1]")


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _filters(value: Any, where: str) -> tuple[str, ...]:
    listed: Sequence[Any] = [] if value in (None, "") else [value] if isinstance(value, str) else value
    if isinstance(listed, list) and all(isinstance(pci_number, str) for pci_number in listed):
        return tuple(listed)
    raise PartedError(f'{where} is {_shown(value)}: write PCI numbers such as "0x233010DE", or a list of them')


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise PartedError(f"{where} is {_shown(value)}: write a mapping")
    return value


def _no_others(fields: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = next((key for key in fields if key not in known), None)
    if unknown is not None:
        raise PartedError(f"{where} has the unexpected field {_shown(unknown)}: its fields are {', '.join(known)}")


def _shown(value: Any) -> str:
    return errors.quoted(str(value)) if value is not None else "missing"
