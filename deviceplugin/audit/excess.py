"""ProcessIdentity uses a GPU for longer than it was let: the driver's word against the arbiter's books, from look to look. Pure.

The driver samples, and tells a second late; between two turns a launch slips through. So what a share used beyond what
it was let is added up, less a tolerance for each second that passes, and never below nothing: a cumulative sum, as in
E. S. Page, Continuous Inspection Schemes, Biometrika 41 (1954). Errors of less than the tolerance never add up, however
long they last, and a reading that is late is made up for by the next one before the sum is enough to be told of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final

TOLERATED: Final = 0.15  # of all time
REPORTED_SECONDS: Final = (
    3.0  # beyond that; a share that is let have 10 % and has all of a GPU has come to it after four
)
MAX_SECONDS: Final = 4.5  # and to nothing again half a minute after it ended
FADING_SECONDS: Final = 10.0  # as the arbiter's own figure: a sample this old counts a third of a new one

Place = tuple[str, str]  # the UUID of a GPU, and the key of a share


@dataclasses.dataclass(frozen=True, slots=True)
class Overuse:
    """A share used a GPU for so much of the time, and was let have so much, since it began to use more; 1 is all."""

    used: float
    allowed: float

    @property
    def sentence(self) -> str:
        """The excess as a sentence."""
        used, allowed = round(100 * self.used), round(100 * self.allowed)
        return f"the driver ran its kernels for {used}% of the time, but the arbiter allowed {allowed}%"


@dataclasses.dataclass(frozen=True, slots=True)
class _Sum:
    excess_seconds: float = 0.0
    used_seconds: float = 0.0  # since the sum was nothing
    allowed_seconds: float = 0.0
    passed_seconds: float = 0.0
    reported: bool = False


_NOTHING: Final = _Sum()


class Excess:
    """From look to look. `beyond`: those that used more than they were allowed, until it is made up for."""

    def __init__(self) -> None:
        self._at = 0.0
        self._held: Mapping[Place, float] = {}
        self._sums: dict[Place, _Sum] = {}
        self.overuse: Mapping[Place, Overuse] = {}

    def update(
        self, now: float, *, used: Mapping[Place, float], held: Mapping[Place, float], turns: Mapping[Place, float]
    ) -> None:
        """What is seen now, in seconds.

        used: for what part of the time since the last look the driver ran kernels of a share, where it tells.
        held: for how long the arbiter has let it, ever; one that is not in it has no books now.
        turns: what part of the time it may take by itself, where it may have been without an arbiter.
        """
        passed = now - self._at
        sums = dict.fromkeys(used, _NOTHING)
        # One that has gone uses nothing: it makes up for it as if it were there, and is forgotten once it has.
        for place, before in self._sums.items():
            had = held.get(place, 0.0) - self._held.get(place, 0.0)
            allowed = max(
                had if had >= 0 else held.get(place, 0.0), turns.get(place, 0.0) * passed
            )  # books may begin again
            added = _added(before, used.get(place, 0.0) * passed, allowed, passed)
            if place in used or added is not _NOTHING:
                sums[place] = added
        self._at, self._held, self._sums = now, dict(held), sums
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
    """The part of a GPU's time that each share used lately, as a fading mean that each audit feeds.

    The arbiter knows how long a share needs its GPU only while another share wants it. A share that is alone holds the
    GPU all the time, busy or idle; the driver's utilisation per process tells the two apart.

    recent: from 0 to 1; a share that is absent was not measured.
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._sums: dict[Place, tuple[float, float]] = {}  # faded: the used and the measured part of the past
        self.recent: Mapping[Place, float] = {}

    def update(self, now: float, used: Mapping[Place, float]) -> None:
        """Add what the driver measured since the last call, and drop the shares that it did not measure."""
        fade = math.exp(-max(0.0, now - self._at) / FADING_SECONDS)
        self._at = now
        sums = {}
        for place, part in used.items():
            before, measured = self._sums.get(place, (0.0, 0.0))
            sums[place] = before * fade + part * (1 - fade), measured * fade + 1 - fade
        self._sums = sums
        self.recent = {place: part / measured for place, (part, measured) in sums.items() if measured > 0}
