"""Policies: how to choose between GPUs that fit, as a table of cost functions; the lowest cost wins.

A cost function is evaluated for one GPU, or for all GPUs of many nodes at once. So it uses only operators that numbers
and arrays share (no `if`, `min` or `max`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpushare import typical

Number = Any  # a float, or an array of them


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
    """A GPU that could take a share, with its surroundings.

    around: the mean of `Free.mean`, before the share, over the GPU's group, itself included. exclusive: whether a pod
    with an exclusion label uses it, so that only pods with the same label can use the rest. All values are computed on
    demand: most cost functions read few of them, and each one takes time over arrays.
    """

    free_before: Callable[[], Free]
    free_after: Callable[[], Free]
    around: Callable[[Group], Number]
    exclusive: Callable[[], Number]

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


def _fragmentation(option: Option) -> Number:
    """Return the increase in stranded capacity; ties go to the best fit."""
    after, exclusive = option.after, option.exclusive()
    return (_stranded(after, exclusive) - _stranded(option.before, exclusive)) * 1000 + after.mean


def _stranded(free: Free, exclusive: Number) -> Number:
    stranded = typical.stranded(free.compute, free.memory)
    return stranded + exclusive * (free.mean - stranded)


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
