"""GroupSize: how many pods a gang needs to start, and how many it may have.

"4" means four pods, placed together. An elastic gang has a range: with "2-8", as in `torchrun --nnodes=2:8`, two pods
start together, and up to six others join as room appears.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gpushare import caps, errors

_RANGE: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


class GroupSize(NamedTuple):
    """The numbers of pods; both are 0 without a group, and equal unless the gang is elastic."""

    least: int = 0
    most: int = 0

    @property
    def is_gang(self) -> bool:
        """Whether there can be two pods in the group."""
        return self.most > 1

    @property
    def is_elastic(self) -> bool:
        """Whether the gang may start before all its pods fit."""
        return self.least < self.most

    @property
    def rule(self) -> str:
        """How its pods are placed, as a clause."""
        if self.is_elastic:
            return f"{self.least} of its pods are placed together, and up to {self.most - self.least} others join"
        return f"its {self.most} pods are placed together"

    def __str__(self) -> str:
        return f"{self.least}-{self.most}" if self.is_elastic else str(self.most)


NO_GROUP: Final = GroupSize()


def parse(text: str) -> GroupSize:
    """Parse the annotation. Raises `QuantityError`: what is wrong, and what to write."""
    match = _RANGE.fullmatch(text)
    size = GroupSize(int(match[1]), int(match[2] or match[1])) if match else NO_GROUP
    if not 1 <= size.least <= caps.GPUS or not 1 <= size.most <= caps.GPUS:
        said = f'is not a count: write a whole number from 1 to {caps.GPUS}, or a range of them such as "2-8"'
        raise errors.QuantityError(said)
    if size.least > size.most:
        raise errors.QuantityError(f'has a minimum above its maximum: write "{size.most}-{size.least}"')
    return size
