"""The pause before the next try: exponential, bounded and random.

It is random over the whole range ("full jitter"): a failure often hits all replicas or nodes at the same moment, and
they must not all retry at the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable


def pause_seconds(
    failures: int,
    *,
    first_seconds: float,
    most_seconds: float,
    draw: Callable[[], float] = random.random,
) -> float:
    """Return the pause after `failures` failed tries in a row (1 or more).

    The upper end doubles with each failure from `first_seconds` to `most_seconds`. The pause lies between a tenth of
    the upper end and all of it, so that it is never zero.
    """
    end = min(most_seconds, first_seconds * 2.0 ** min(failures - 1, 62))
    return end * (0.1 + 0.9 * draw())
