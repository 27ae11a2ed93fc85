"""Decides which cases fit into the time that is left, and how long each may measure. Pure.

Nobody knows beforehand how fast programs start on a machine, and time on a GPU may be short. So the plan is made from
what cases have really taken so far, and made again after each. A window is never shorter than the least: a share that
is measured for less shows turns and not shares, so cases are left out instead, the least wanted first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

LEAST_SECONDS, MOST_SECONDS = 3.0, 6.0
AROUND_SECONDS = 2.5  # of a window: programs start, warm up and end
FASTEST, SLOWEST = 0.4, 4.0  # of the pace that is learned, so that one odd case does not decide


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What a case takes: seconds whatever the window, and how many windows it measures."""

    fixed_seconds: float
    windows: int = 0

    def around_seconds(self, pace: float) -> float:
        """The time outside the windows, where programs take `pace` times as long as estimated."""
        return pace * (self.fixed_seconds + self.windows * AROUND_SECONDS)

    def seconds(self, window_seconds: float, pace: float) -> float:
        """The whole case."""
        return self.around_seconds(pace) + self.windows * window_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The cases that fit, in order, those that do not, and the length of a window."""

    fits: tuple[str, ...]
    left_out: tuple[str, ...]
    window_seconds: float


def make(
    names: Sequence[str],
    costs: Mapping[str, Cost],
    seconds_left: float,
    *,
    pace: float = 1.0,
    fixed_window_seconds: float | None = None,
) -> Plan:
    """Plan `names`, most wanted first. A case that does not fit is passed over, and smaller ones behind it may fit."""
    least = fixed_window_seconds or LEAST_SECONDS
    fits: list[str] = []
    planned = 0.0
    for name in names:
        needed = costs[name].seconds(least, pace)
        if planned + needed <= seconds_left:
            fits.append(name)
            planned += needed
    windows = sum(costs[name].windows for name in fits)
    spare = (seconds_left - planned) / windows if windows else 0.0
    window = fixed_window_seconds or min(MOST_SECONDS, least + spare)
    return Plan(tuple(fits), tuple(name for name in names if name not in fits), window)


def pace(done: Sequence[tuple[Cost, float, float]]) -> float:
    """How much longer than estimated cases have taken outside their windows: cost, window and whole seconds of each."""
    estimated = sum(cost.around_seconds(1.0) for cost, _, _ in done)
    taken = sum(max(0.0, took - cost.windows * window) for cost, window, took in done)
    return min(SLOWEST, max(FASTEST, taken / estimated)) if estimated else 1.0
