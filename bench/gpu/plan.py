"""Decides which cases fit into the remaining time, and how long each may measure. Pure.

How fast programs start on a machine is unknown until they have started, and time on a GPU may be short. So the bench
plans again after every case, by the time that the finished ones took. A window is never shorter than the minimum: a
shorter one measures single leases and not shares. Cases are left out instead, the least important first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

MIN_SECONDS, MAX_SECONDS = 3.0, 6.0
AROUND_SECONDS = 2.5  # before and after a window: programs start, warm up and end
PRIOR_SECONDS = 60.0  # the weight of the estimate, so that one odd case does not decide the pace


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The time a case takes: seconds that do not depend on the window, and the number of windows it measures."""

    fixed_seconds: float
    windows: int = 0

    def around_seconds(self, pace: float) -> float:
        """Return the time outside the windows, when programs take `pace` times as long as estimated."""
        return pace * (self.fixed_seconds + self.windows * AROUND_SECONDS)

    def seconds(self, window_seconds: float, pace: float) -> float:
        """Return the time of the whole case."""
        return self.around_seconds(pace) + self.windows * window_seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The cases that fit, in order, the cases that do not, and the length of a window."""

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
    """Plan `names`, most wanted first. Smaller cases may fit after one that does not."""
    least = fixed_window_seconds or MIN_SECONDS
    fits: list[str] = []
    planned = 0.0
    for name in names:
        needed = costs[name].seconds(least, pace)
        if planned + needed <= seconds_left:
            fits.append(name)
            planned += needed
    windows = sum(costs[name].windows for name in fits)
    spare = (seconds_left - planned) / windows if windows else 0.0
    window = fixed_window_seconds or min(MAX_SECONDS, least + spare)
    return Plan(tuple(fits), tuple(name for name in names if name not in fits), window)


def pace(done: Sequence[tuple[Cost, float, float]]) -> float:
    """Return actual over estimated time outside the windows. done: cost, window and total seconds of each case."""
    estimated = sum(cost.around_seconds(1.0) for cost, _, _ in done)
    taken = sum(max(0.0, took - cost.windows * window) for cost, window, took in done)
    return (PRIOR_SECONDS + taken) / (PRIOR_SECONDS + estimated)
