"""Profile: the kind of a MIG device, and its name.

`[Cc.]Gg.MEMgb[+attribute,…|-attribute,…]`: G of the GPU's slices, the memory of the instance, and C of its slices if a
compute instance has fewer than its GPU instance. Attributes are engines that come with it (`+me`, `+gfx`) or do not
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
_NAME_PARTS: Final = 8  # a name counts memory in eighths of the GPU, also on GPUs of four slices
_GIB: Final = 1 << 30
_MIB: Final = 1 << 20


class ProfileError(errors.GpushareError):
    """A text that is not a profile's name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """A kind of MIG device."""

    gpu_slices: int
    memory_gb: int  # the number in the name, not an exact size
    compute_slices: int  # equal to `gpu_slices` unless it is a part of a GPU instance
    with_: tuple[str, ...] = ()  # attributes, sorted
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
        """Return the profile of the GPU instance that it needs: itself, with all compute slices."""
        return dataclasses.replace(self, compute_slices=self.gpu_slices)

    @property
    def resource(self) -> str | None:
        """Return the resource of the strategy `mixed`; None for a part of a GPU instance, which has none."""
        return RESOURCE_PREFIX + normalised(str(self)) if self.compute_slices == self.gpu_slices else None


def parse(text: str) -> Profile:
    """Return the profile of that name, even if no GPU has it. Raises ProfileError."""
    match = _NAME.fullmatch(text)
    if match is None:
        said = 'is not a MIG profile: write slices and memory such as "3g.40gb", and attributes after + or -'
        raise ProfileError(f"{errors.quoted(text)} {said}")
    compute, gpu, memory, sign, listed = match.groups()
    words = [] if sign is None else listed.split(",")
    bad = next((word for word in words if not _ATTRIBUTE.fullmatch(word) or words.count(word) > 1), None)
    if bad is not None:
        raise ProfileError(
            f"{errors.quoted(text)} is not a MIG profile: the attribute {errors.quoted(bad)} is not a name, or "
            'occurs twice: write each once, such as "+me" or "+me.all"'
        )
    attributes = tuple(sorted(words))
    with_, without = (attributes, ()) if sign == "+" else ((), attributes)
    return Profile(int(gpu), int(memory), int(compute or gpu), with_, without)


def normalised(name: str) -> str:
    """Return a profile's name for resources, labels and names of configs, which cannot contain +."""
    return name.replace("+", ".")


def is_part_of_instance(compute_slices: int, gpu_slices: int) -> bool:
    """Whether a compute instance of that size leaves slices of its GPU instance free."""
    return 0 < compute_slices < gpu_slices


def memory_gb(*, instance_bytes: int, total_bytes: int) -> int:
    """Return the number in an instance's name: whole eighths of the GPU, rounded up, in GiB of a GPU rounded up.

    Halves are rounded away from zero, as in NVIDIA's tools: 70.5 is 71.
    """
    eighths = math.ceil(_NAME_PARTS * instance_bytes / total_bytes)
    return math.floor(eighths * -(-total_bytes // _GIB) / _NAME_PARTS + 0.5)


def memory_gb_of_mib(*, instance_mib: int, total_bytes: int) -> int:
    """Return `memory_gb` from NVML's sizes of instances in MiB; in whole GiB if NVML does not give the GPU's total."""
    if not total_bytes:
        return -(-instance_mib * _MIB // _GIB)
    return memory_gb(instance_bytes=instance_mib * _MIB, total_bytes=total_bytes)
