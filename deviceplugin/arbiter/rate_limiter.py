"""How often is too often. Pure: time is a parameter.

A rate with a burst, kept as one number: when the next one would be due if all came evenly. Whoever comes too early is
told how long to wait, each later one longer, so that waiting costs no more than the rate allows.
"""

from __future__ import annotations


class RateLimiter:
    """At most `burst` at once and `per_second` in the long run; times in seconds on one clock."""

    def __init__(self, *, per_second: float, burst: int) -> None:
        self._interval = 1.0 / per_second
        self._ahead = burst * self._interval
        self._due = float("-inf")

    def take(self, now: float) -> float:
        """Count one more; return how long it should have waited, 0 when it is in time."""
        self._due = max(self._due, now - self._ahead) + self._interval
        return max(0.0, self._due - now)
