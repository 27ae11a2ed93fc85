"""Profile: the kind of a MIG device, and its name.

`[Cc.]Gg.MEMgb[+attribute,…|-attribute,…]`: G of the GPU's slices, memory of the instance, and, if a compute instance
has less than its GPU instance, C of its slices. Attributes are engines that are included (`+me`, `+gfx`) or excluded
(`-me`). https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Final

from gpushare import errors

RESOURCE_PREFIX: Final = "nvidia.com/mig-"
MEDIA: Final = "me"
ALL_MEDIA: Final = "me.all"
GRAPHICS: Final = "gfx"
_NAME: Final = re.compile(r"(?:([0-9]{1,9})c\.)?([0-9]{1,9})g\.([0-9]{1,9})gb(?:([+-])(.*))?", re.ASCII)
_ATTRIBUTE: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9.]*[A-Za-z0-9])?", re.ASCII)
_NAME_PARTS: Final = 8  # a name counts memory in eighths of the GPU, on GPUs of four slices as well
_GIB: Final = 1 << 30
_MIB: Final = 1 << 20


class ProfileError(errors.GpushareError):
    """A text that is not a profile's name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """A kind of MIG device. `compute_slices` equals `gpu_slices` unless it is a part of a GPU instance.

    memory_gb: the number in the name, not an exact size. with_, without: attributes, sorted.
    """

    gpu_slices: int
    memory_gb: int
    compute_slices: int
    with_: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        part = "" if self.compute_slices == self.gpu_slices else f"{self.compute_slices}c."
        attributes = f"+{','.join(self.with_)}" if self.with_ else f"-{','.join(self.without)}" if self.without else ""
        return f"{part}{self.gpu_slices}g.{self.memory_gb}gb{attributes}"

    @property
    def plain(self) -> bool:
        """Whether it has no attributes."""
        return not self.with_ and not self.without

    @property
    def gpu_instance(self) -> Profile:
        """The profile of its GPU instance, which has all compute slices."""
        return dataclasses.replace(self, compute_slices=self.gpu_slices)

    @property
    def resource(self) -> str | None:
        """The resource of strategy `mixed`; None for a part of a GPU instance, which has none."""
        if self.compute_slices != self.gpu_slices:
            return None
        return RESOURCE_PREFIX + normalised(str(self))


def parse(text: str) -> Profile:
    """Parse a profile's name, whether or not any GPU has it. Raises ProfileError."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise ProfileError(
            f'{errors.quoted(text)} is not a MIG profile: write slices and memory, as "3g.40gb", and attributes '
            "after + or -"
        )
    compute, gpu, memory, sign, listed = match.groups()
    attributes = () if sign is None else _attributes(text, listed)
    return Profile(
        gpu_slices=int(gpu),
        memory_gb=int(memory),
        compute_slices=int(compute or gpu),
        with_=attributes if sign == "+" else (),
        without=attributes if sign == "-" else (),
    )


def _attributes(text: str, listed: str) -> tuple[str, ...]:
    words = listed.split(",")
    bad = next((word for word in words if _ATTRIBUTE.fullmatch(word) is None or words.count(word) > 1), None)
    if bad is not None:
        raise ProfileError(
            f"{errors.quoted(text)} is not a MIG profile: the attribute {errors.quoted(bad)} is not a name, or is "
            'twice there: write each once, as "+me" or "+me.all"'
        )
    return tuple(sorted(words))


def normalised(name: str) -> str:
    """Return the profile's name without +, for resources, labels and names of configs."""
    return name.replace("+", ".")


def is_part_of_instance(compute_slices: int, gpu_slices: int) -> bool:
    """Whether a compute instance of that size leaves slices of its GPU instance free."""
    return 0 < compute_slices < gpu_slices


def memory_gb(*, instance_bytes: int, total_bytes: int) -> int:
    """Return the number in an instance's name: its memory in whole eighths of the GPU, rounded up, times the GPU's GiB.

    Halves are rounded away from zero, as NVIDIA's tools do: 70.5 is 71.
    """
    eighths = math.ceil(_NAME_PARTS * instance_bytes / total_bytes)
    return math.floor(eighths * -(-total_bytes // _GIB) / _NAME_PARTS + 0.5)


def memory_gb_of_mib(*, instance_mib: int, total_bytes: int) -> int:
    """Return `memory_gb` of NVML's sizes in MiB; if the GPU's total is unknown, the instance's size in whole GiB."""
    if not total_bytes:
        return -(-instance_mib * _MIB // _GIB)
    return memory_gb(instance_bytes=instance_mib * _MIB, total_bytes=total_bytes)
