"""Policies: which of the GPUs that will do is best, as a table of costs; the lowest wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from gpushare import fragmentation, ledger
from gpushare.gpu import Gpu


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A card before and after it takes a share."""

    card: Gpu
    before: ledger.Use
    after: ledger.Use


Cost = Callable[[Option], float]


def _left(option: Option) -> float:
    """What stays free, 0 to 1: the mean of compute and memory."""
    percent, memory_bytes = fragmentation.free(option.card, option.after)
    return (percent / 100 + memory_bytes / (option.card.memory_bytes or 1)) / 2


def _spread(option: Option) -> float:
    return -_left(option)


def _fragmentation(option: Option) -> float:
    """How much more is stranded, best fit where that is equal."""
    _, before = fragmentation.stranded(option.card, option.before)
    _, after = fragmentation.stranded(option.card, option.after)
    return (after - before) * 1000 + _left(option)


DEFAULT = "fragmentation"

POLICIES: Mapping[str, Cost] = {
    "fragmentation": _fragmentation,
    "pack": _left,
    "spread": _spread,
}
