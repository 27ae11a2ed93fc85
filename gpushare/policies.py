"""Policies: how to choose between GPUs that fit, as a table of cost functions; the lowest cost wins.

A cost function is evaluated for one GPU, or for all GPUs of many nodes at once. So it uses only operators that numbers
and arrays share (no `if`, `min` or `max`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Number = Any  # a float, or an array of them


@dataclasses.dataclass(frozen=True, slots=True)
class Typical:
    """A class of request: parts of one GPU (0 to 1), and its frequency (weights need not add up to 1)."""

    compute: float
    memory: float
    weight: float


# The default until the cluster's own mix is known: common sizes, small ones more often.
DEFAULT_MIX = (Typical(0.10, 0.10, 0.2), Typical(0.25, 0.25, 0.3), Typical(0.50, 0.50, 0.3), Typical(1.00, 1.00, 0.2))

TypicalOf = Callable[[int], Sequence[Typical]]  # from a GPU's bytes to the mix of requests on such a GPU


def default_mix(_gpu_bytes: int) -> Sequence[Typical]:
    """Return the default mix for any GPU."""
    return DEFAULT_MIX


def median_request(mix: Sequence[Typical]) -> Typical:
    """Return the median request of a non-empty mix: half of the mix is at least as large."""
    half, seen = sum(typical.weight for typical in mix) / 2, 0.0
    for typical in sorted(mix, key=lambda typical: (typical.compute, typical.memory), reverse=True):
        seen += typical.weight
        if seen >= half:
            return typical
    raise ValueError("the mix is empty")


def stranded_part(compute: Number, memory: Number, mix: Sequence[Typical] = DEFAULT_MIX) -> Number:
    """Return the stranded part of GPUs with so much free, all as parts of a GPU, 0 to 1; takes numbers or arrays."""
    total = sum(typical.weight for typical in mix)
    useless = sum(typical.weight * ((typical.compute > compute) | (typical.memory > memory)) for typical in mix)
    return (compute + memory) / 2 * useless / total if total else 0.0 * compute


class Group(enum.Enum):
    """GPUs of one node that belong together."""

    NODE = enum.auto()
    NUMA_NODE = enum.auto()  # all GPUs of the node with an unknown NUMA node form one group
    LINK_GROUP = enum.auto()  # a GPU without links is a group by itself


@dataclasses.dataclass(frozen=True, slots=True)
class Free:
    """The free parts of a GPU, 0 to 1; zeros for a GPU that takes no shares now."""

    compute: Number
    memory: Number

    @property
    def mean(self) -> Number:
        """The mean of free compute and free memory."""
        return (self.compute + self.memory) / 2


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A GPU that could take a share. Values are computed on demand, because each one takes time over arrays."""

    free_before: Callable[[], Free]
    free_after: Callable[[], Free]
    around: Callable[[Group], Number]  # the mean of `Free.mean`, before the share, over the GPU's group
    exclusive: Callable[[], Number]  # whether only pods with the same exclusion label can use the rest

    @property
    def before(self) -> Free:
        """The free parts of the GPU without the share."""
        return self.free_before()

    @property
    def after(self) -> Free:
        """The free parts of the GPU with the share."""
        return self.free_after()


Cost = Callable[[Option], Number]


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """A cost function. aim: what it prefers, completing "of the GPUs that fit …"."""

    cost: Cost
    aim: str

    @property
    def looks_around(self) -> bool:
        """Whether a GPU's cost depends on the GPUs around it."""
        groups: list[Group] = []

        def around(group: Group) -> float:
            groups.append(group)
            return 0.0

        self.cost(Option(lambda: Free(1.0, 1.0), lambda: Free(1.0, 1.0), around, lambda: False))
        return bool(groups)


def _fragmentation(option: Option) -> Number:
    """Return the increase in stranded capacity; ties go to the best fit."""
    after, exclusive = option.after, option.exclusive()

    def stranded(free: Free) -> Number:
        part = stranded_part(free.compute, free.memory)
        return part + exclusive * (free.mean - part)

    return (stranded(after) - stranded(option.before)) * 1000 + after.mean


def _pack(option: Option) -> Number:
    return option.after.mean


def _spread(option: Option) -> Number:
    return -option.after.mean


DEFAULT: Final = "fragmentation"
SPREAD: Final = "spread"

# The engine (`placement.fleet`) prices `fragmentation` by the cluster's own mix; this cost applies where none is known.
POLICIES: Final[Mapping[str, Policy]] = {
    "fragmentation": Policy(
        _fragmentation, "the one where it leaves the least unusable capacity (the fullest if several tie)"
    ),
    "pack": Policy(_pack, "the fullest"),
    SPREAD: Policy(_spread, "the emptiest"),
}
