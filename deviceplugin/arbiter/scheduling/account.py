"""What one share has coming to it on one GPU, and what it may still take. Pure: time is a parameter, in nanoseconds.

Three books, kept from one event to the next:

owed     what it is guaranteed and has not had yet. It grows by `request` while the share wants the GPU; while it does
         not, only up to a small credit, so that nobody saves up an hour. Time that it holds the GPU by its guarantee
         is taken off, and so is all time that it holds the GPU for longer than it was given: that is its debt.
room     what its limit still allows: a small bucket that fills by `limit` and empties by 1 while it holds the GPU. All
         that a kernel runs over is waited for: a minute of one with a limit of 10 % is nine minutes without.
surplus  what it has had of the time that nobody was owed, divided by its weight: the least is served next.

What is owed, to a share or by it, is ten seconds at most: a guarantee is not made up for without end.

A plain sliding window would do for the first two, but it forgets a debt after ten seconds and repeats every burst ten
seconds later; over any ten seconds in which a share wants the GPU the books promise what the window would.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

MILLISECOND_NS: Final = 1_000_000
WINDOW_NS: Final = 10_000 * MILLISECOND_NS
CREDIT_NS: Final = 50 * MILLISECOND_NS
LATENCY_CREDIT_NS: Final = 100 * MILLISECOND_NS
BURST_NS: Final = 50 * MILLISECOND_NS
# A share at its limit runs and pauses in turn, so long together: shorter turns would be spent on taking turns.
PERIOD_NS: Final = 150 * MILLISECOND_NS
LATENCY_PERIOD_NS: Final = 100 * MILLISECOND_NS
MIN_TURN_NS: Final = 20 * MILLISECOND_NS  # however low the limit is
# What is left to the bucket: it goes on filling while a timer is late, and nothing is lost.
SPARE_NS: Final = 10 * MILLISECOND_NS
MIN_WEIGHT: Final = 0.01  # of a share with no request, in what nobody was owed


@dataclasses.dataclass(frozen=True, slots=True)
class Entitlement:
    """What a share was given of one GPU's time, in percent; `latency`: it is of the latency class."""

    request_percent: int
    limit_percent: int
    latency: bool = False


class PayingAccount(enum.Enum):
    """Which book pays for the time that passes."""

    NOTHING = "nothing"
    OWED = "owed"
    SURPLUS = "surplus"
    ALONE = "alone"  # nobody else wants it: what it is owed it gets, and what it owes it works off


class Account:
    """The books of one share on one GPU. What it does now (`wanting`, `charge`) is set by `set`, from then on."""

    def __init__(self, entitlement: Entitlement, now_ns: int) -> None:
        self.entitlement = entitlement
        self.held_ns = 0  # all time charged, ever
        self.owed_ns = 0.0
        self.room_ns = float(BURST_NS)
        self.surplus_ns = 0.0
        self.wanting = False
        self.charge = PayingAccount.NOTHING
        self.at_ns = now_ns

    def change(self, entitlement: Entitlement, now_ns: int) -> None:
        """Give it more or less from now on; what it has been owed until now, and owes, it keeps."""
        self.pass_time(now_ns)
        self.entitlement = entitlement

    def held_by_ns(self, now_ns: int) -> int:
        """All time charged, up to now."""
        return self.held_ns + (max(0, now_ns - self.at_ns) if self.charge is not PayingAccount.NOTHING else 0)

    def set(self, now_ns: int, *, wanting: bool | None = None, charge: PayingAccount | None = None) -> None:
        """From now on it wants the GPU or not, and pays from this book."""
        self.pass_time(now_ns)
        if wanting is not None:
            self.wanting = wanting
        if charge is not None:
            self.charge = charge

    def pass_time(self, now_ns: int) -> None:
        """Bring the books up to now."""
        passed_ns = now_ns - self.at_ns
        if passed_ns <= 0:
            return
        self.at_ns = now_ns
        holds = self.charge is not PayingAccount.NOTHING
        self.held_ns += passed_ns if holds else 0
        self._owe(passed_ns)
        if self.charge is PayingAccount.SURPLUS:
            self.surplus_ns += passed_ns / self.weight
        filled_ns = passed_ns * (self.entitlement.limit_percent / 100 - (1 if holds else 0))
        # Whoever has waited for what it is owed must be let have it then: the bucket may hold as much.
        most_ns = max(BURST_NS, self.room_ns - passed_ns, self.owed_ns if self.wanting else 0)
        self.room_ns = min(most_ns, self.room_ns + filled_ns)

    @property
    def weight(self) -> float:
        """Its part of what nobody was owed."""
        return max(self.entitlement.request_percent / 100, MIN_WEIGHT)

    @property
    def limited(self) -> bool:
        """Whether it has a limit at all."""
        return self.entitlement.limit_percent < 100

    def eligible(self) -> bool:
        """Whether its limit lets it begin."""
        return not self.limited or self.room_ns >= self._least_room_ns - 1

    def eligible_in_ns(self) -> int:
        """How long until it does, if it holds nothing."""
        if self.eligible():
            return 0
        return int((self._least_room_ns - 1 - self.room_ns) * 100 / max(1, self.entitlement.limit_percent)) + 1

    def lasts_ns(self) -> int | None:
        """How long it may hold the GPU before its limit ends that; None: for ever."""
        if not self.limited:
            return None
        return max(0, int(self.room_ns * 100 / (100 - self.entitlement.limit_percent)))

    @property
    def _least_room_ns(self) -> float:
        """What its limit must have left for it to begin: enough for its part of a period."""
        limit = self.entitlement.limit_percent / 100
        period_ns = LATENCY_PERIOD_NS if self.entitlement.latency else PERIOD_NS
        return min(float(BURST_NS - SPARE_NS), max(limit * period_ns, MIN_TURN_NS) * (1 - limit))

    @property
    def _credit_ns(self) -> float:
        return float(LATENCY_CREDIT_NS if self.entitlement.latency else CREDIT_NS)

    def _owe(self, passed_ns: int) -> None:
        request = self.entitlement.request_percent / 100
        owed_ns = self.owed_ns + passed_ns * (request - (1 if self.charge is PayingAccount.OWED else 0))
        if self.charge is PayingAccount.ALONE:
            owed_ns = max(0.0, self.owed_ns - passed_ns) if self.owed_ns > 0 else min(0.0, owed_ns)
        elif self.charge is PayingAccount.SURPLUS:
            # It is served: what comes due meanwhile is no more than a credit.
            owed_ns = min(owed_ns, max(self.owed_ns, self._credit_ns))
        elif self.wanting or self.charge is not PayingAccount.NOTHING:
            # What was owed by a greater request is not forgotten with it: it runs out.
            most_ns = max(request * WINDOW_NS, self._credit_ns, self.owed_ns - passed_ns)
            owed_ns = min(owed_ns, most_ns)
        elif owed_ns > self._credit_ns:
            # What is above the credit runs out rather than being gone at once: between two kernels of a program that
            # waits for each of them it wants nothing, for a moment.
            owed_ns = max(self._credit_ns, self.owed_ns - passed_ns)
        self.owed_ns = max(-float(WINDOW_NS), owed_ns)
