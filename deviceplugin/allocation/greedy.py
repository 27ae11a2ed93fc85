"""The best of shared devices, one after the other: of the device with the fewest or the most of its ids given out.

Slices of a MIG device share its time and memory, so its own ids count first, and those of its GPU among equals. Counts
are compared, not parts of a whole. Where they are equal the device goes first that was picked least in this answer,
and then the one that comes first: the same question has the same answer.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare import errors

PACKED: Final = "packed"


class AllocationError(errors.GpushareError):
    """A request of the kubelet's that cannot be met."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """How many ids a device or GPU has, and how many of them can still be given."""

    total: int
    available: int

    @property
    def allocated(self) -> int:
        """How many are given out."""
        return self.total - self.available


def rank(load: Load, policy: str) -> int:
    """The one with the lowest rank goes first; an empty policy is `distributed`."""
    return -load.allocated if policy == PACKED else load.allocated


def prefer(
    devices: Mapping[str, str],
    *,
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    policy: str,
    gpus: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """`size` ids: the `required` ones first, then the best of the `available` ones.

    devices: every id of the resource → its device; gpus: by device its GPU, unless it is one. Raises AllocationError if
    there are not as many, or must be more.
    """
    kept, offered = set(required), set(available)
    gpu_of = {device: (gpus or {}).get(device, device) for device in devices.values()}
    candidates: dict[str, list[str]] = {device: [] for device in gpu_of}
    free_on = dict.fromkeys(gpu_of.values(), 0)
    for identity, device in devices.items():  # in their order: the answer must not depend on the kubelet's
        if identity in offered and identity not in kept:
            candidates[device].append(identity)
            free_on[gpu_of[device]] += 1
    needed = size - len(required)
    if needed < 0:
        raise AllocationError(f"{len(required)} devices must be in an allocation of {size}: ask for that many")
    free = sum(map(len, candidates.values()))
    if free < needed:
        raise AllocationError(
            f"not enough available devices to satisfy allocation: {needed} more are needed, and {free} are free"
        )
    totals = collections.Counter(devices.values())
    totals_on = collections.Counter(gpu_of[device] for device in devices.values())
    picked: collections.Counter[tuple[str, str]] = collections.Counter()

    def order(device: str) -> tuple[int, int, int, int]:
        gpu = gpu_of[device]
        of_device, of_gpu = Load(totals[device], len(candidates[device])), Load(totals_on[gpu], free_on[gpu])
        picks = picked["device", device], picked["gpu", gpu]
        return rank(of_device, policy), rank(of_gpu, policy), *picks

    answer = list(required)
    for _ in range(needed):
        device = min((device for device, ids in candidates.items() if ids), key=order)
        answer.append(candidates[device].pop(0))
        picked.update([("device", device), ("gpu", gpu_of[device])])
        free_on[gpu_of[device]] -= 1
    return tuple(answer)
