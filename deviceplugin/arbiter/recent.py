"""What part of the last seconds a share used a GPU. Pure: time is a parameter, in nanoseconds.

The past fades: what was ten seconds ago counts a third of what is now, so the figure needs no list of moments and no
second look at it. Of a share that keeps the GPU because nobody else wants it, nobody knows whether it does anything;
such time is left out, and while it lasts there is no figure.
"""

from __future__ import annotations

import enum
import math
from typing import Final

FADING_NS: Final = 10e9
# Fewer seconds than one, of what is known, say nothing yet.
MIN_KNOWN: Final = 0.1


class Sight(enum.Enum):
    """What is known of a share now."""

    USES = "it has the GPU, and would have to give it back if it did nothing"
    USES_NOT = "it does not have it"
    UNKNOWN = "it has it, and nobody asks for it"


class Recent:
    """Of one share on one GPU."""

    def __init__(self, now_ns: int) -> None:
        self._sight = Sight.USES_NOT
        self._used = self._known = 0.0  # parts of the past, faded: both at most 1
        self._at_ns = now_ns

    def see(self, sight: Sight, now_ns: int) -> None:
        """From now on it is so."""
        if sight is not self._sight:
            self._pass_time(now_ns)
            self._sight = sight

    def ratio(self, now_ns: int) -> float | None:
        """From 0 to 1; None while it is unknown."""
        self._pass_time(now_ns)
        if self._sight is Sight.UNKNOWN or self._known < MIN_KNOWN:
            return None
        return self._used / self._known

    def _pass_time(self, now_ns: int) -> None:
        fade = math.exp(-max(0, now_ns - self._at_ns) / FADING_NS)
        self._at_ns = max(self._at_ns, now_ns)
        self._used = self._used * fade + (1 - fade if self._sight is Sight.USES else 0)
        self._known = self._known * fade + (1 - fade if self._sight is not Sight.UNKNOWN else 0)
