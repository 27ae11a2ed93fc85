"""One share at one GPU: the scheduler's state of it, and what its past says. Pure: times are in nanoseconds."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Final

from deviceplugin.arbiter.scheduling.account import BURST_NS, WINDOW_NS, Account, Entitlement

FADING_NS: Final = 10e9
MIN_KNOWN: Final = 0.1  # less of the (faded) past is too little for a figure


class LeasePhase(enum.Enum):
    """The phase of a lease."""

    OPEN = "open"
    REVOKED = "revoked"
    DRAINING = "draining"
    LATE = "late"


@dataclasses.dataclass(frozen=True, slots=True)
class Open:
    """A command: let the share launch. `again`: during a drain, which its other processes continue."""

    key: str
    again: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Revoke:
    """A command: revoke the share's lease."""

    key: str


Command = Open | Revoke


@dataclasses.dataclass(slots=True)
class IdleTime:
    """The gaps in the turns of a gang's member, which decide when its GPU is lent to other shares.

    A borrower takes a while to give the GPU back, and the gang waits for that on all its GPUs. So only long gaps are
    worth lending (`worth_ns`), and earlier gaps predict the next one: after a short gap the GPU stays reserved for
    twice that gap's length, and each long gap halves the reservation.
    """

    since_ns: int | None = None
    patience_ns: int = 0

    def begin(self, now_ns: int) -> None:
        self.since_ns = now_ns

    def end(self, now_ns: int, worth_ns: int) -> None:
        """End the gap, if there is one: the member has work again."""
        if self.since_ns is None:
            return
        gap_ns = now_ns - self.since_ns
        self.patience_ns = max(self.patience_ns, 2 * gap_ns) if gap_ns < worth_ns else self.patience_ns // 2
        self.since_ns = None

    def interrupt(self, now_ns: int, worth_ns: int) -> None:
        """End the gap with the turn. It might have grown longer, so a short one predicts nothing."""
        if self.since_ns is not None and now_ns - self.since_ns >= worth_ns:
            self.patience_ns //= 2
        self.since_ns = None

    def lent_from_ns(self, now_ns: int, least_ns: int, worth_ns: int) -> int:
        """Return when other shares may borrow the GPU. least_ns: the minimum time from the start of the gap."""
        if self.since_ns is None:
            return now_ns
        return self.since_ns + max(least_ns, min(self.patience_ns, worth_ns))


class GpuShare:
    """One share at one GPU."""

    def __init__(self, entitlement: Entitlement, now_ns: int) -> None:
        self.account = Account(entitlement, now_ns)
        self.phase: LeasePhase | None = None
        self.asked = False  # has something to launch here; a gang's member may want its turn because of another GPU
        self.member = False  # of a gang
        self.exempt = False  # pays nothing, because its gang waits for another GPU
        self.since_ns = 0  # when the turn began or was renewed
        self.due_ns: int | None = 0  # None if nothing ends the turn
        self.revoked_ns = 0
        self.worked_ns = 0  # when a late share was last seen at work
        self.drain_ns = 0.0  # moving average of the time from revoke to release
        self.closed_ns = 0  # when it last reported a closed gate, with its work about to end
        self.idle = IdleTime()  # its gaps in turns of its gang
        self.leases = 0


class Activity(enum.Enum):
    """How a share uses its GPU at the moment, as far as the arbiter knows."""

    BUSY = "it holds the GPU, and would have to return it when idle"
    IDLE = "it does not hold the GPU"
    UNKNOWN = "it holds the GPU, and no other share wants it"


class RecentUse:
    """The fraction of the last seconds in which a share used a GPU.

    The past fades exponentially: ten seconds ago counts a third of now, so no list of moments is needed. A share that
    holds the GPU because no other share wants it may be busy or idle. That time is left out, and while it lasts there
    is no figure.
    """

    def __init__(self, now_ns: int) -> None:
        self._activity = Activity.IDLE
        self._busy = self._known = 0.0  # fractions of the past, faded: at most 1
        self._at_ns = now_ns

    def record(self, activity: Activity, now_ns: int) -> None:
        if activity is not self._activity:
            self._pass_time(now_ns)
            self._activity = activity

    def ratio(self, now_ns: int) -> float | None:
        self._pass_time(now_ns)
        if self._activity is Activity.UNKNOWN or self._known < MIN_KNOWN:
            return None
        return self._busy / self._known

    def _pass_time(self, now_ns: int) -> None:
        fade = math.exp(-max(0, now_ns - self._at_ns) / FADING_NS)
        self._at_ns = max(self._at_ns, now_ns)
        self._busy = self._busy * fade + (1 - fade if self._activity is Activity.BUSY else 0)
        self._known = self._known * fade + (1 - fade if self._activity is not Activity.UNKNOWN else 0)


class WaitClock:
    """How long a share has waited for a GPU and held it, and how often it was evicted.

    A share waits while it wants the GPU and does not hold it. It is throttled while its own limit is the reason, with
    or without other shares. It holds the GPU from its lease until it has returned it; a late share for ten seconds.
    """

    def __init__(self, now_ns: int) -> None:
        self._at_ns = now_ns
        self._waits = False
        self._throttled_for_ns = 0  # from `_at_ns` on
        self._phase: LeasePhase | None = None
        self._waited_ns = self._throttled_ns = self._held_ns = self._late_from_ns = 0
        self.evictions = 0  # how often it did not return the GPU in time

    def record(self, share: GpuShare, now_ns: int) -> None:
        self._waited_ns, self._throttled_ns = self.waited_ns(now_ns)
        self._held_ns = self.held_ns(now_ns)
        self._at_ns = now_ns
        self._waits = share.asked and share.phase is not LeasePhase.OPEN
        self._throttled_for_ns = share.account.eligible_in_ns() if self._waits else 0
        if share.phase is LeasePhase.LATE and self._phase is not LeasePhase.LATE:
            self.evictions += 1
            self._late_from_ns = now_ns
        self._phase = share.phase

    def held_ns(self, now_ns: int) -> int:
        until_ns = now_ns if self._phase is not LeasePhase.LATE else min(now_ns, self._late_from_ns + WINDOW_NS)
        return self._held_ns + (max(0, until_ns - self._at_ns) if self._phase is not None else 0)

    def waited_ns(self, now_ns: int) -> tuple[int, int]:
        """Return how long the share has waited so far, and how much of that it was throttled."""
        passed_ns = max(0, now_ns - self._at_ns) if self._waits else 0
        return self._waited_ns + passed_ns, self._throttled_ns + min(passed_ns, self._throttled_for_ns)


_Place = tuple[str, str]  # a GPU's UUID, and a share's key


class Debts:
    """The state of shares that left a GPU in debt, until they are back or have made up for it.

    A share has no process between two short programs of a script, and a process can close its connection at any time.
    If its account started afresh each time, it would get the limit's burst again and again and never pay a debt. Time
    that is owed to a share is not kept.
    """

    def __init__(self) -> None:
        self._shares: dict[_Place, GpuShare] = {}

    def store(self, gpu_uuid: str, key: str, share: GpuShare, now_ns: int) -> None:
        """Store a share that leaves this GPU, and drop the shares that have made up for their debts."""
        self._shares[gpu_uuid, key] = share
        for stored in self._shares.values():
            stored.account.set(now_ns, wanting=False)
        # Without a request, a debt is never made up for, and dropping it costs nothing.
        self._shares = {
            place: stored
            for place, stored in self._shares.items()
            if (stored.account.owed_ns < 0 and stored.account.entitlement.request_percent > 0)
            or (stored.account.limited and stored.account.room_ns < BURST_NS)
        }

    def pop(self, gpu_uuid: str, key: str) -> GpuShare | None:
        """Remove and return the stored state of a share that reconnects to this GPU; None if it owed nothing."""
        share = self._shares.pop((gpu_uuid, key), None)
        if share is not None:
            # The GPU's surplus may have started again at zero since.
            share.account.surplus_ns = 0.0
        return share
