"""Policies: which of the GPUs that will do is best, as a table of costs; the lowest wins.

A cost is asked of one GPU, or of all GPUs of many nodes at once: it is written with operators that numbers and arrays
have in common (no `if`, `min` or `max`), and costs the same either way.
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
    NUMA_NODE = enum.auto()  # where it is unknown, all such GPUs of the node
    LINK_GROUP = enum.auto()  # a GPU without links is one by itself


@dataclasses.dataclass(frozen=True, slots=True)
class Free:
    """What is free of a GPU, as parts of it, 0 to 1; nothing of one that takes no shares now."""

    compute: Number
    memory: Number

    @property
    def mean(self) -> Number:
        """Of compute and memory."""
        return (self.compute + self.memory) / 2


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A GPU that takes a share, and its node.

    around: `Free.mean`, before it does, of all GPUs of the group that the GPU is in, itself among them: their mean.
    exclusive: whether a pod with an exclusion label is there: what is free is for nobody but its like.
    All of it is worked out when a cost asks for it: most look at little, and over arrays each look takes time.
    """

    free_before: Callable[[], Free]
    free_after: Callable[[], Free]
    around: Callable[[Group], Number]
    exclusive: Callable[[], Number]

    @property
    def before(self) -> Free:
        """What is free on the GPU without the share."""
        return self.free_before()

    @property
    def after(self) -> Free:
        """What is free on the GPU once it has the share."""
        return self.free_after()


Cost = Callable[[Option], Number]


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """aim: what it looks for, as the rest of "of the GPUs that fit …"."""

    cost: Cost
    aim: str


def _fragmentation(option: Option) -> Number:
    """How much more is stranded, best fit where that is equal."""
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

# The engine (`placement.fleet`) prices `fragmentation` by the cluster's own mix; this cost is for where none is known.
POLICIES: Final[Mapping[str, Policy]] = {
    "fragmentation": Policy(
        _fragmentation, "the one where it leaves the least unusable capacity (the fullest if several tie)"
    ),
    "pack": Policy(_pack, "the fullest"),
    SPREAD: Policy(_spread, "the emptiest"),
}
