"""For how long a share has waited for a GPU, and had it, and how often it was passed over. Pure: time is a parameter.

A share waits while it wants the GPU and does not have it; it is throttled while it is its own limit that keeps it from
it, whoever else is there. It has it from its lease until it has given it back; while it is late, for ten seconds. Times
are in nanoseconds.
"""

from __future__ import annotations

from deviceplugin.arbiter.account import WINDOW_NS
from deviceplugin.arbiter.seat import LeasePhase, Seat


class WaitClock:
    """Of one share on one GPU, as its seat was seen to be from one event to the next."""

    def __init__(self, now_ns: int) -> None:
        self._at_ns = now_ns
        self._waits = False
        self._kept_back_ns = 0  # for how long from then on its limit keeps it back
        self._phase: LeasePhase | None = None
        self._waited_ns = 0
        self._throttled_ns = 0
        self._had_ns = 0
        self._late_from_ns = 0
        self.evictions = 0  # how often it did not give the GPU back in time

    def see(self, seat: Seat, now_ns: int) -> None:
        """From now on it is so."""
        self._waited_ns, self._throttled_ns = self.by_ns(now_ns)
        self._had_ns = self.had_by_ns(now_ns)
        self._at_ns = now_ns
        self._waits = seat.asked and seat.phase is not LeasePhase.OPEN
        self._kept_back_ns = seat.account.eligible_in_ns() if self._waits else 0
        if seat.phase is LeasePhase.LATE and self._phase is not LeasePhase.LATE:
            self.evictions += 1
            self._late_from_ns = now_ns
        self._phase = seat.phase

    def had_by_ns(self, now_ns: int) -> int:
        """For how long it has had the GPU up to now."""
        until_ns = now_ns if self._phase is not LeasePhase.LATE else min(now_ns, self._late_from_ns + WINDOW_NS)
        return self._had_ns + (max(0, until_ns - self._at_ns) if self._phase is not None else 0)

    def by_ns(self, now_ns: int) -> tuple[int, int]:
        """How long it has waited up to now, and how long of that it was throttled."""
        passed_ns = max(0, now_ns - self._at_ns) if self._waits else 0
        return self._waited_ns + passed_ns, self._throttled_ns + min(passed_ns, self._kept_back_ns)
