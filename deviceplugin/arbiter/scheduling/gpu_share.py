"""The scheduler's state of one share at one GPU."""

from __future__ import annotations

import dataclasses
import enum

from deviceplugin.arbiter.scheduling.account import Account, Entitlement


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
        """Start a gap."""
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
        self.due_ns: int | None = 0  # None: the turn has no end of its own
        self.revoked_ns = 0
        self.worked_ns = 0  # when a late share was last seen at work
        self.drain_ns = 0.0  # moving average of the time from revoke to release
        self.closed_ns = 0  # when it last reported a closed gate, with its work about to end
        self.idle = IdleTime()  # its gaps in turns of its gang
        self.leases = 0
