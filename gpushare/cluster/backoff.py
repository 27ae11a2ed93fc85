"""How long to wait before the next retry: exponential, bounded and random.

The pause is random over the whole range ("full jitter"): a failure usually affects all replicas and nodes at the same
moment, and their retries must not coincide.
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
    """Return the pause after `failures` consecutive failures (1 or more).

    The upper limit doubles with each failure from `first_seconds` to `most_seconds`; the pause is between a tenth of
    the limit and the limit, so it is never zero.
    """
    end = min(most_seconds, first_seconds * 2.0 ** min(failures - 1, 62))
    return end * (0.1 + 0.9 * draw())
