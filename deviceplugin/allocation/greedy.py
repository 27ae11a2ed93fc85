"""Chooses shared devices one by one, each from the device with the fewest or the most allocated ids.

Slices of a MIG device share its time and memory, so the MIG device's own ids are compared first and its GPU's ids
second. Absolute counts are compared, not fractions. Ties go to the device that was picked least in this answer, then to
the first in order, so equal requests get equal answers.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from gpushare import errors

PACKED: Final = "packed"


class AllocationError(errors.GpushareError):
    """A request of the kubelet that cannot be met."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """The ids of a device or GPU: the total, and those still available."""

    total: int
    available: int

    @property
    def allocated(self) -> int:
        """The number of allocated ids."""
        return self.total - self.available


def rank(load: Load, policy: str) -> int:
    """Return the sort key of a device; the lowest goes first. An empty policy means `distributed`."""
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
    """Choose `size` ids: the `required` ones first, then the best of the `available` ones.

    devices: the device of every id of the resource. gpus: the GPU of each MIG device. Raises AllocationError if too few
    ids are free, or if more are required than requested.
    """
    kept, offered = set(required), set(available)
    gpu_of = {device: (gpus or {}).get(device, device) for device in devices.values()}
    candidates: dict[str, list[str]] = {device: [] for device in gpu_of}
    free_on = dict.fromkeys(gpu_of.values(), 0)
    for identity, device in devices.items():  # in the resource's order, so that the kubelet's order does not matter
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
