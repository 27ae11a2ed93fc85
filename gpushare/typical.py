"""Typical requests: common sizes, and how much of the free capacity they cannot use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Typical:
    """A class of request: parts of one GPU (0 to 1), and its frequency (weights need not add up to 1)."""

    compute: float
    memory: float
    weight: float


# The default until the cluster's own mix is known: common sizes, small ones more often.
DEFAULT_MIX = (
    Typical(0.10, 0.10, 0.2),
    Typical(0.25, 0.25, 0.3),
    Typical(0.50, 0.50, 0.3),
    Typical(1.00, 1.00, 0.2),
)


# A function from a GPU's bytes to the mix of requests on such a GPU.
TypicalOf = Callable[[int], Sequence[Typical]]


def by_default(_gpu_bytes: int) -> Sequence[Typical]:
    """Return the default mix for any GPU."""
    return DEFAULT_MIX


def median(mix: Sequence[Typical]) -> Typical:
    """Return the median request of a non-empty mix: half of the mix is at least as large."""
    half = sum(typical.weight for typical in mix) / 2
    seen = 0.0
    for typical in sorted(mix, key=lambda typical: (typical.compute, typical.memory), reverse=True):
        seen += typical.weight
        if seen >= half:
            return typical
    raise ValueError("the mix is empty")


def stranded(compute: Any, memory: Any, mix: Sequence[Typical] = DEFAULT_MIX) -> Any:
    """Return the stranded part of GPUs with so much free, all as parts of a GPU, 0 to 1; takes numbers or arrays."""
    total = sum(typical.weight for typical in mix)
    useless = sum(typical.weight * ((typical.compute > compute) | (typical.memory > memory)) for typical in mix)
    return (compute + memory) / 2 * useless / total if total else 0.0 * compute
