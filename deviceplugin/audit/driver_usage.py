"""The part of a GPU's time that each share used lately, by the driver's samples. Pure.

The arbiter knows how long a share needs its GPU only while another share wants it. A share that is alone holds the GPU
all the time, busy or idle; the driver's utilisation per process tells the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from deviceplugin.audit.excess import Place

FADING_SECONDS: Final = 10.0  # as the arbiter's own figure: a sample this old counts a third of a new one


class DriverUsage:
    """A fading mean per share, fed by each audit. `recent`: from 0 to 1; a share that is absent was not measured."""

    def __init__(self) -> None:
        self._at = 0.0
        self._sums: dict[Place, tuple[float, float]] = {}  # faded: the used and the measured part of the past
        self.recent: Mapping[Place, float] = {}

    def look(self, now: float, used: Mapping[Place, float]) -> None:
        """Add what the driver measured since the last call, and drop the shares that it did not measure."""
        fade = math.exp(-max(0.0, now - self._at) / FADING_SECONDS)
        self._at = now
        sums = {}
        for place, part in used.items():
            before, measured = self._sums.get(place, (0.0, 0.0))
            sums[place] = before * fade + part * (1 - fade), measured * fade + 1 - fade
        self._sums = sums
        self.recent = {place: part / measured for place, (part, measured) in sums.items() if measured > 0}
