"""Finds shares that use a GPU for longer than allowed, by comparing the driver with the arbiter's accounts. Pure.

The driver samples, and reports a second late; a launch can also slip through between two turns. So a share's excess is
summed up, less a tolerance per second, and never below zero: a cumulative sum, as in E. S. Page, Continuous Inspection
Schemes, Biometrika 41 (1954). Errors below the tolerance never add up, however long they last. A late reading is
compensated by the next one before the sum is large enough to report.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final

TOLERATED: Final = 0.15  # fraction of all time
# of excess beyond the tolerance; a share with 10 % that uses a whole GPU reaches it after four seconds
REPORTED_SECONDS: Final = 3.0
MAX_SECONDS: Final = 4.5  # and the sum is back at zero half a minute after the excess ended
FADING_SECONDS: Final = 10.0  # as in the arbiter's usage figure: a sample this old counts a third of a new one

Place = tuple[str, str]  # the UUID of a GPU, and the key of a share


@dataclasses.dataclass(frozen=True, slots=True)
class Overuse:
    """The fractions of a GPU's time, up to 1, that a share used and that it was allowed, since the excess began."""

    used: float
    allowed: float

    @property
    def sentence(self) -> str:
        used, allowed = round(100 * self.used), round(100 * self.allowed)
        return f"the driver ran its kernels for {used}% of the time, but the arbiter allowed {allowed}%"


@dataclasses.dataclass(frozen=True, slots=True)
class _Sum:
    excess_seconds: float = 0.0
    used_seconds: float = 0.0  # since the sum was last zero
    allowed_seconds: float = 0.0
    passed_seconds: float = 0.0
    reported: bool = False


_NOTHING: Final = _Sum()


class Excess:
    """Sums up the excess of each share. overuse: shares over the threshold, until their sum is back at zero."""

    def __init__(self) -> None:
        self._at = 0.0
        self._held: Mapping[Place, float] = {}
        self._sums: dict[Place, _Sum] = {}
        self.overuse: Mapping[Place, Overuse] = {}

    def update(
        self, now: float, *, used: Mapping[Place, float], held: Mapping[Place, float], turns: Mapping[Place, float]
    ) -> None:
        """Add the time since the last call.

        used: the fraction of that time in which the driver ran kernels of a share; missing if not reported. held: the
        total seconds for which the arbiter gave a share its GPU; missing if it has no account now. turns: the fraction
        of the time in which a share launches without an arbiter; given while it may have been without one.
        """
        passed = now - self._at
        sums = dict.fromkeys(used, _NOTHING)
        # A share that is gone uses nothing: its sum falls as if it were idle, and is dropped at zero.
        for place, before in self._sums.items():
            had = held.get(place, 0.0) - self._held.get(place, 0.0)
            had = had if had >= 0 else held.get(place, 0.0)  # the account may have restarted
            allowed = max(had, turns.get(place, 0.0) * passed)
            added = _added(before, used.get(place, 0.0) * passed, allowed, passed)
            if place in used or added is not _NOTHING:
                sums[place] = added
        self._at = now
        self._held = dict(held)
        self._sums = sums
        self.overuse = {
            place: Overuse(total.used_seconds / total.passed_seconds, total.allowed_seconds / total.passed_seconds)
            for place, total in sums.items()
            if total.reported
        }


def _added(before: _Sum, used: float, allowed: float, passed: float) -> _Sum:
    excess = min(MAX_SECONDS, before.excess_seconds + used - allowed - TOLERATED * passed)
    if excess <= 0:
        return _NOTHING
    return _Sum(
        excess,
        before.used_seconds + used,
        before.allowed_seconds + allowed,
        before.passed_seconds + passed,
        before.reported or excess >= REPORTED_SECONDS,
    )


class DriverUsage:
    """The fraction of a GPU's time that each share used recently, as an exponentially fading mean over audits.

    The arbiter cannot see it: a share that is alone holds its GPU all the time, busy or idle.
    recent: from 0 to 1; shares that were not measured are missing.
    """

    def __init__(self) -> None:
        self._at = 0.0
        # exponentially weighted sums of the used and the measured time
        self._sums: dict[Place, tuple[float, float]] = {}
        self.recent: Mapping[Place, float] = {}

    def update(self, now: float, used: Mapping[Place, float]) -> None:
        """Add what the driver measured since the last call, and drop shares that it did not measure."""
        fade = math.exp(-max(0.0, now - self._at) / FADING_SECONDS)
        self._at = now
        sums = {}
        for place, part in used.items():
            before, measured = self._sums.get(place, (0.0, 0.0))
            sums[place] = before * fade + part * (1 - fade), measured * fade + 1 - fade
        self._sums = sums
        self.recent = {place: part / measured for place, (part, measured) in sums.items() if measured > 0}
