"""Schedules one GPU: grants, revokes and ends leases. Pure: events and times in, commands out.

    WAITING ─open→ OPEN ─revoke→ REVOKED ─closed→ DRAINING ─released→ (none)
                     └──── released (idle, or gone) ─────────────────↗

One share at a time holds the GPU. When its turn is over and another share is next, its lease is revoked. It first
reports that it launches nothing new (closed: the next share begins while the last work runs out), and then that nothing
runs any more (released). A share that does neither in time is late, and the next share begins next to it. Otherwise two
shares whose kernels wait for each other across two GPUs would wait for ever. A late share is charged until it reports
its release, unless the driver shows no work of it: then its process is stopped, and holds nothing.

While no other share is to be served, the holder keeps its turn, with neither messages nor timers.

Shares of several GPUs are served on all of them together (`coscheduled_gpu`). While such a share waits, the gang
scheduler (`gangs`) decides first what comes next, and then this GPU does (`decide`).
"""

from __future__ import annotations

import dataclasses
from typing import Final

from deviceplugin.arbiter.scheduling import account
from deviceplugin.arbiter.scheduling.account import MILLISECOND_NS, WINDOW_NS, Entitlement, PayingAccount, WaitQueue
from deviceplugin.arbiter.scheduling.gpu_share import Command, GpuShare, LeasePhase, Open, Revoke


@dataclasses.dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of turns, in nanoseconds."""

    contended_ns: int = 30 * MILLISECOND_NS
    latency_ns: int = 10 * MILLISECOND_NS  # while a share of the latency class waits or holds
    longest_ns: int = 100 * MILLISECOND_NS
    drains: int = 4  # a turn lasts at least this many times the share's drain time
    drain_timeout_ns: int = 100 * MILLISECOND_NS
    lend_ns: int = 2 * MILLISECOND_NS  # the GPU of an idle member is lent after this time at the earliest
    worth_ns: int = 10 * MILLISECOND_NS  # a shorter gap is not worth lending
    late_ns: int = WINDOW_NS  # how long a late share is charged without being seen at work


DEFAULT: Final = Lengths()
# A gang begins when the last of its GPUs is free, and ends when the last one is, so its turns are longer.
GANGS_TURNS: Final = 3
READY: Final = frozenset({None, LeasePhase.LATE})  # phases in which a share can begin


class LeaseScheduler:
    """The scheduler of one GPU. Its methods return commands. `now_ns` must never go back."""

    def __init__(self, lengths: Lengths = DEFAULT) -> None:
        self.shares: dict[str, GpuShare] = {}
        self.holder: str | None = None  # OPEN or REVOKED
        self.changed: set[str] = set()  # shares whose state has changed; the reader clears it
        self._draining: str | None = None
        self.waiting = WaitQueue()  # shares that belong to no gang
        self._members = WaitQueue()  # waiting members of gangs
        self.reserved_for: str | None = None  # a member
        self.undecided = False  # the next share has not been chosen yet
        self.blocked = False  # no share begins until the member does, or gives the GPU back
        self._urgent: set[str] = set()  # waiting or holding shares of the latency class
        self._lengths = lengths
        self._surplus_ns = 0.0
        self._now_ns = 0

    def join(self, key: str, entitlement: Entitlement, now_ns: int) -> list[Command]:
        """Add a share, or change its entitlement. A change ends a turn only if the new limit does."""
        if key in self.shares:
            self.shares[key].account.change(entitlement, now_ns)
            self._requeue(key, now_ns)
            self._apply_limit(key, now_ns)
        else:
            self.shares[key] = GpuShare(entitlement, now_ns)
            self.changed.add(key)
        return self.tick(now_ns)

    def remove(self, key: str, now_ns: int) -> list[Command]:
        if key not in self.shares:
            return []
        self._end(key, now_ns)
        self._set(key, now_ns, wanting=False)
        self.shares[key].asked = self.shares[key].exempt = self.shares[key].member = False
        if self.reserved_for == key:
            self.give_back(now_ns)
        del self.shares[key]
        self.changed.discard(key)
        return self.tick(now_ns)

    def want(self, key: str, now_ns: int) -> list[Command]:
        self.shares[key].asked = True
        self.changed.add(key)
        return self.expect(key, now_ns, wanting=True)

    def expect(self, key: str, now_ns: int, *, wanting: bool) -> list[Command]:
        """Queue a gang's member that will have work once its gang is served, or dequeue it unless it asked itself."""
        share = self.shares[key]
        if wanting and not share.account.wanting:
            share.account.surplus_ns = max(share.account.surplus_ns, self._surplus_ns)
            self._set(key, now_ns, wanting=True)
            self._shorten(key, now_ns)
        elif not wanting and not share.asked:
            self._set(key, now_ns, wanting=False)
        return self.tick(now_ns)

    def adopt(self, key: str, now_ns: int) -> bool:
        """Let a share keep the GPU that it held before the restart. Return False if another share holds it."""
        if self.holder is not None:
            return False
        self.shares[key].asked = True
        self._set(key, now_ns, wanting=True)
        self._open(key, now_ns)
        return True

    def closed(self, key: str, now_ns: int) -> list[Command]:
        """Handle a share's report, after a revoke, that it launches nothing new and its work is about to end."""
        if self.holder == key and self.shares[key].phase is LeasePhase.REVOKED and self._draining is None:
            self.shares[key].closed_ns = now_ns
            self._set(key, now_ns, phase=LeasePhase.DRAINING)
            self._draining = key
            self.holder = None
        return self.tick(now_ns)

    def released(self, key: str, now_ns: int) -> list[Command]:
        """Handle a share's report, after a revoke or when it is idle, that nothing of it runs any more."""
        share = self.shares[key]
        if share.phase in {LeasePhase.REVOKED, LeasePhase.DRAINING, LeasePhase.LATE}:
            share.drain_ns += ((now_ns - share.revoked_ns) - share.drain_ns) / 4
        self._end(key, now_ns)
        if share.asked:
            self._shorten(key, now_ns)  # it has asked again meanwhile
        return self.tick(now_ns)

    def observe(self, key: str, now_ns: int, *, works: bool) -> list[Command]:
        share = self.shares[key]
        if share.phase is not LeasePhase.LATE:
            return []
        if works:
            share.worked_ns = now_ns
        is_stopped = now_ns >= max(share.revoked_ns, share.worked_ns) + self._lengths.late_ns
        self._set(key, now_ns, charge=PayingAccount.NOTHING if is_stopped else self._debt(key))
        return self.tick(now_ns)

    def contended(self, key: str) -> bool:
        return any(len(queue) > (key in queue) for queue in (self.waiting, self._members))

    def is_over(self, key: str) -> bool:
        """Whether the turn may end for a share that goes first."""
        share = self.shares[key]
        return share.phase is LeasePhase.OPEN and share.due_ns is not None and self._now_ns >= share.due_ns

    def give_back(self, now_ns: int) -> None:
        """End the reservation. Call `decide` afterwards."""
        key, self.reserved_for, self.blocked, self.undecided = self.reserved_for, None, False, True
        if key is not None:
            self._requeue(key, now_ns)

    def tick(self, now_ns: int) -> list[Command]:
        """Let time pass. Call it at `due_ns`; calls at other times do no harm."""
        self._now_ns = now_ns
        self._expire(now_ns)
        if self._members or self.reserved_for is not None:
            self.undecided = True
            return []
        return self.decide(now_ns)

    def decide(self, now_ns: int) -> list[Command]:
        """Serve the next share, unless the GPU is reserved for a gang."""
        self.undecided = False
        commands: list[Command] = []
        if self.holder is not None:
            commands += self._review(self.holder, now_ns)
        if self.holder is None and not self.blocked:
            key = self._next(now_ns)
            if key is not None:
                self._open(key, now_ns)
                commands.append(Open(key))
        return commands

    def due_ns(self) -> int | None:
        times = []
        for share in (self.shares[key] for key in (self.holder, self._draining) if key is not None):
            if share.phase is LeasePhase.OPEN and share.due_ns is not None:
                times.append(share.due_ns)
            elif share.phase in {LeasePhase.REVOKED, LeasePhase.DRAINING}:
                times.append(share.revoked_ns + self._lengths.drain_timeout_ns)
        if self.holder is None and not self.blocked:
            next_ns = self._next_ns(self._now_ns)
            times += [next_ns] if next_ns is not None else []
        return min(times, default=None)

    def _next(self, now_ns: int) -> str | None:
        return self.waiting.first(now_ns)

    def _first_eligible(self, now_ns: int) -> str | None:
        return self.waiting.first(now_ns) or self._members.first(now_ns)

    def _next_ns(self, now_ns: int) -> int | None:
        times = (self.waiting.next_ns(now_ns), self._members.next_ns(now_ns))
        return min((time for time in times if time is not None), default=None)

    def _set(
        self,
        key: str,
        now_ns: int,
        *,
        wanting: bool | None = None,
        charge: PayingAccount | None = None,
        phase: LeasePhase | None = None,
    ) -> None:
        share = self.shares[key]
        share.phase = phase or share.phase
        share.account.set(now_ns, wanting=wanting, charge=charge)
        self._requeue(key, now_ns)

    def _requeue(self, key: str, now_ns: int) -> None:
        share = self.shares[key]
        self.changed.add(key)
        queue = self._members if share.member else self.waiting
        if share.account.wanting and share.phase in READY and key != self.reserved_for:
            queue.add(key, share.account, now_ns)
        else:
            queue.discard(key)
        urgent = share.account.entitlement.latency and share.account.wanting
        (self._urgent.add if urgent else self._urgent.discard)(key)

    def _review(self, key: str, now_ns: int) -> list[Command]:
        """End the holder's turn, or renew it, if it is over."""
        share = self.shares[key]
        if not self.is_over(key):
            return []
        share.account.pass_time(now_ns)
        if share.account.lasts_ns() == 0:
            return [self._revoke(key, now_ns)]
        # The holder competes like a waiting share, and ties go to the other one. Its limit applies separately, above.
        first = self.waiting.first(now_ns)
        if first is not None and account.choose({first: self.shares[first].account, key: share.account}) != key:
            return [self._revoke(key, now_ns)]
        self._renew(key, now_ns, self._first_eligible(now_ns))
        return []

    def _revoke(self, key: str, now_ns: int) -> Revoke:
        share = self.shares[key]
        share.revoked_ns = now_ns
        share.asked = False
        charge = self._debt(key) if share.account.charge is not PayingAccount.NOTHING else None
        # If it still has something to launch, it will ask again.
        self._set(key, now_ns, wanting=False, charge=charge, phase=LeasePhase.REVOKED)
        return Revoke(key)

    def _debt(self, key: str) -> PayingAccount:
        """Return the balance that pays for work that outlasts its turn."""
        return PayingAccount.NOTHING if self.shares[key].exempt else PayingAccount.OWED

    def _open(self, key: str, now_ns: int) -> None:
        share = self.shares[key]
        self._set(key, now_ns, phase=LeasePhase.OPEN)
        share.leases += 1
        share.since_ns = now_ns
        self.holder = key
        self._renew(key, now_ns, self._first_eligible(now_ns))

    def _renew(self, key: str, now_ns: int, best: str | None) -> None:
        """Start a turn. best: the first waiting share that may begin."""
        share = self.shares[key]
        self._pay(key, now_ns, best)
        ends = [share.account.lasts_ns()]
        if best is not None:
            ends.append(self._length_ns(share))
        else:
            next_ns = self._next_ns(now_ns)
            ends += [next_ns - now_ns] if next_ns is not None else []
        share.due_ns = min((now_ns + end_ns for end_ns in ends if end_ns is not None), default=None)

    def _pay(self, key: str, now_ns: int, best: str | None) -> None:
        account = self.shares[key].account
        account.pass_time(now_ns)
        charge = account.charge_of_turn() if best is not None else PayingAccount.ALONE
        if charge is PayingAccount.SURPLUS:
            self._surplus_ns = max(self._surplus_ns, account.surplus_ns)
        # The previous share pays while its last work runs out.
        pays = self._draining is None and not self.shares[key].exempt
        self._set(key, now_ns, charge=charge if pays else PayingAccount.NOTHING)

    def _length_ns(self, share: GpuShare) -> int:
        if self._urgent:
            return self._lengths.latency_ns
        contended_ns = self._lengths.contended_ns * (GANGS_TURNS if share.member else 1)
        wanted_ns = max(contended_ns, int(self._lengths.drains * share.drain_ns))
        return min(wanted_ns, self._lengths.longest_ns)

    def _shorten(self, newcomer: str, now_ns: int) -> None:
        """Shorten the holder's turn, because another share has begun to wait."""
        if self.holder is None or self.holder == newcomer:
            return
        holder, account = self.shares[self.holder], self.shares[newcomer].account
        holder.account.pass_time(now_ns)
        if account.interrupts(holder.account):
            due_ns = now_ns
        elif account.eligible():
            due_ns = max(now_ns, holder.since_ns + self._length_ns(holder))
        else:
            due_ns = now_ns + account.eligible_in_ns()
        holder.due_ns = due_ns if holder.due_ns is None else min(holder.due_ns, due_ns)
        if holder.phase is LeasePhase.OPEN and account.eligible():
            self._pay(self.holder, now_ns, newcomer)

    def _apply_limit(self, key: str, now_ns: int) -> None:
        """Apply a changed limit to the share's turn, or to the turn that it waits for."""
        share = self.shares[key]
        lasts_ns = share.account.lasts_ns()
        if share.phase is LeasePhase.OPEN and lasts_ns is not None:
            ends_ns = now_ns + lasts_ns
            share.due_ns = ends_ns if share.due_ns is None else min(share.due_ns, ends_ns)
        elif share.account.wanting:
            self._shorten(key, now_ns)

    def _expire(self, now_ns: int) -> None:
        """Mark shares that take too long to give the GPU back as late."""
        for key in (self.holder, self._draining):
            if key is None or self.shares[key].phase is LeasePhase.OPEN:
                continue
            if now_ns >= self.shares[key].revoked_ns + self._lengths.drain_timeout_ns:
                self._set(key, now_ns, charge=self._debt(key), phase=LeasePhase.LATE)
                self._vacate(key, now_ns)

    def _end(self, key: str, now_ns: int) -> None:
        share = self.shares[key]
        if share.phase is None:
            return
        wanting = False if share.phase is LeasePhase.OPEN else None
        share.asked = share.asked and wanting is None
        share.phase = None
        self._set(key, now_ns, wanting=wanting, charge=PayingAccount.NOTHING)
        self._vacate(key, now_ns)

    def _vacate(self, key: str, now_ns: int) -> None:
        if self.holder == key:
            self.holder = None
        if self._draining == key:
            self._draining = None
            if self.holder is not None:
                if self.shares[self.holder].phase is LeasePhase.REVOKED:
                    self._set(self.holder, now_ns, charge=self._debt(self.holder))
                else:
                    self._pay(self.holder, now_ns, self._first_eligible(now_ns))
