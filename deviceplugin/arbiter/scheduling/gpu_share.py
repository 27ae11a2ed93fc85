"""A share at a GPU: its books, what its lease has come to, its gaps in turns of its gang, and what it is told."""

from __future__ import annotations

import dataclasses
import enum

from deviceplugin.arbiter.scheduling.account import Account, Entitlement


class LeasePhase(enum.Enum):
    """What a lease has come to."""

    OPEN = "open"
    REVOKED = "revoked"
    DRAINING = "draining"
    LATE = "late"


@dataclasses.dataclass(frozen=True, slots=True)
class Open:
    """A command: let the share launch. `again`: in the middle of a drain, which its other processes continue."""

    key: str
    again: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Revoke:
    """A command: take the lease back."""

    key: str


Command = Open | Revoke


@dataclasses.dataclass(slots=True)
class IdleTime:
    """The gaps of a gang's member in its turns; they decide when its GPU is lent to other shares.

    A borrower takes a while to give the GPU back, and the gang waits for that on all its GPUs. So only a gap of a
    certain length is worth lending (`worth_ns`), and earlier gaps predict the next one: after a short gap the GPU stays
    reserved for twice as long as that gap, and each long gap halves the reservation.
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
        """Return when other shares may borrow the GPU; least_ns: no sooner than so long after the gap began."""
        if self.since_ns is None:
            return now_ns
        return self.since_ns + max(least_ns, min(self.patience_ns, worth_ns))


class GpuShare:
    """One share at this GPU."""

    def __init__(self, entitlement: Entitlement, now_ns: int) -> None:
        self.account = Account(entitlement, now_ns)
        self.phase: LeasePhase | None = None
        self.asked = False  # it has something to launch here; a member of a gang may want its turn because of others
        self.member = False  # of a gang, which is served on several GPUs together
        self.exempt = False  # a member that is kept from what it waits for pays nothing
        self.since_ns = 0  # the beginning of the turn, or of what it renewed
        self.due_ns: int | None = 0  # None: its turn does not end by itself
        self.revoked_ns = 0
        self.worked_ns = 0  # when a late one was last seen to run something
        self.drain_ns = 0.0  # how long it took to give back, lately
        self.closed_ns = 0  # when it last reported that its gate is closed and its work about to end
        self.idle = IdleTime()  # its gaps in turns of its gang
        self.leases = 0
