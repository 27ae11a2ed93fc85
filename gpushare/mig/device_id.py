"""PCI IDs of a GPU model as mig-parted writes them: `0xDDDDVVVV`, with the subsystem `0xDDDDVVVV:0xSSSSVVVV`."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from gpushare import errors

_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", re.ASCII)


class DeviceIdError(errors.GpushareError):
    """A text that is not a pair of PCI IDs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A device ID and its vendor ID."""

    device: int
    vendor: int

    def __str__(self) -> str:
        return f"0x{self.device:04X}{self.vendor:04X}"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceId:
    """A model; `subsystem` is the board, None if absent."""

    model: Pair
    subsystem: Pair | None = None

    def __str__(self) -> str:
        return f"{self.model}" if self.subsystem is None else f"{self.model}:{self.subsystem}"

    def matches(self, hardware: DeviceId) -> bool:
        """Whether this, as a filter, matches `hardware`; without a subsystem it matches every board."""
        return self.model == hardware.model and (self.subsystem is None or self.subsystem == hardware.subsystem)


def parse(text: str) -> DeviceId:
    """Return the IDs in a text. Raises DeviceIdError."""
    parts = text.split(":")
    if len(parts) > 2:
        raise DeviceIdError(
            f"invalid DeviceID format {errors.quoted(text)}: write 0xDDDDVVVV, or 0xDDDDVVVV:0xSSSSVVVV with subsystem"
        )
    model = _pair(parts[0], "DeviceID", text)
    return DeviceId(model, _pair(parts[1], "Subsystem", text) if len(parts) == 2 else None)


def of_nvml(device_id: int, subsystem_id: int = 0) -> DeviceId:
    """Return the IDs in NVML's PCI information, which has both of a pair in one number."""
    subsystem = Pair(subsystem_id >> 16, subsystem_id & 0xFFFF) if subsystem_id else None
    return DeviceId(Pair(device_id >> 16, device_id & 0xFFFF), subsystem)


def _pair(word: str, what: str, text: str) -> Pair:
    number = int(word, 16 if word[:2].lower() == "0x" else 10) if _NUMBER.fullmatch(word) else None
    if number is None or number > 0xFFFFFFFF:
        raise DeviceIdError(
            f"unable to create {what} from {errors.quoted(text)}: {errors.quoted(word)} is not a number of 32 bits "
            "such as 0x20B510DE"
        )
    return Pair(number >> 16, number & 0xFFFF)
