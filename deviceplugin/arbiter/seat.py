"""A share at a GPU: its books, what its lease has come to, and what it is told."""

from __future__ import annotations

import dataclasses
import enum

from deviceplugin.arbiter.account import Account, Entitlement
from deviceplugin.arbiter.idle_time import IdleTime


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


class Seat:
    """One share at this GPU."""

    def __init__(self, entitlement: Entitlement, now_ns: int) -> None:
        self.account = Account(entitlement, now_ns)
        self.phase: LeasePhase | None = None
        self.asked = False  # it has something to launch here; a member of a gang may want its turn because of others
        self.member = False  # of a gang, which is served on several GPUs together
        self.spared = False  # a member that is kept from what it waits for pays nothing
        self.since_ns = 0  # the beginning of the turn, or of what it renewed
        self.due_ns: int | None = 0  # None: its turn does not end by itself
        self.revoked_ns = 0
        self.worked_ns = 0  # when a late one was last seen to run something
        self.drain_ns = 0.0  # how long it took to give back, lately
        self.closed_ns = 0  # when it last reported that its gate is closed and its work about to end
        self.idle = IdleTime()  # its gaps in turns of its gang
        self.leases = 0
