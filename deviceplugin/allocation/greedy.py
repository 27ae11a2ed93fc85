"""The best of shared devices, one after the other: from the GPU with the fewest or the most of its devices given out.

Compared are counts, not parts of a whole. Where they are equal the GPU goes first that was picked least in this answer,
and then the one that comes first among the devices: the same question has the same answer.
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
    """How many devices a GPU has, and how many of them can still be given."""

    total: int
    available: int

    @property
    def allocated(self) -> int:
        """How many are given out."""
        return self.total - self.available


def rank(load: Load, policy: str) -> int:
    """The GPU with the lowest rank goes first; an empty policy is `distributed`."""
    return -load.allocated if policy == PACKED else load.allocated


def prefer(
    devices: Mapping[str, str], *, available: Sequence[str], required: Sequence[str], size: int, policy: str
) -> tuple[str, ...]:
    """`size` ids: the `required` ones first, then the best of the `available` ones.

    devices: every id of the resource → its GPU. Raises AllocationError if there are not as many, or must be more.
    """
    kept, offered = set(required), set(available)
    candidates: dict[str, list[str]] = {gpu: [] for gpu in devices.values()}
    for (
        identity,
        gpu,
    ) in devices.items():  # in the order of the devices, so that the answer does not hang on the kubelet's
        if identity in offered and identity not in kept:
            candidates[gpu].append(identity)
    needed = size - len(required)
    if needed < 0:
        raise AllocationError(f"{len(required)} devices must be in an allocation of {size}: ask for that many")
    free = sum(map(len, candidates.values()))
    if free < needed:
        raise AllocationError(
            f"not enough available devices to satisfy allocation: {needed} more are needed, and {free} are free"
        )
    totals = collections.Counter(devices.values())
    picked = dict.fromkeys(candidates, 0)
    answer = list(required)
    for _ in range(needed):
        gpu = min(
            (gpu for gpu, ids in candidates.items() if ids),
            key=lambda gpu: (rank(Load(totals[gpu], len(candidates[gpu])), policy), picked[gpu]),
        )
        answer.append(candidates[gpu].pop(0))
        picked[gpu] += 1
    return tuple(answer)
