"""The per-GPU operations of the gang scheduler (`gangs`).

A gang is served on all its GPUs at once. So each GPU is reserved for it (`reserve`), lets it begin (`begin`), ends its
turn (`stop`), and is given back (`give_back`).

During its turn a member may have nothing to launch here for a while. The GPU is then lent to other shares, unless the
gap is likely to be too short (`gpu_share.IdleTime`). A GPU that stays reserved while others wait is charged to the
member. The turn goes on: it ends when its length is over, as if the member had held the GPU all the time.
"""

from __future__ import annotations

from deviceplugin.arbiter.scheduling import account
from deviceplugin.arbiter.scheduling.account import PayingAccount
from deviceplugin.arbiter.scheduling.gpu_share import Command, LeasePhase, Open
from deviceplugin.arbiter.scheduling.lease_scheduler import DEFAULT, READY, LeaseScheduler, Lengths


class CoscheduledGpu(LeaseScheduler):
    """The scheduler of a GPU that gangs use, alone or next to other shares."""

    def __init__(self, lengths: Lengths = DEFAULT) -> None:
        super().__init__(lengths)
        self._turn_ns = 0  # when the current turn of the gang began or was extended

    def join_gang(self, key: str, now_ns: int) -> None:
        self.shares[key].member = True
        self.waiting.discard(key)
        self._requeue(key, now_ns)

    @property
    def is_lent(self) -> bool:
        """Whether the GPU is reserved for a member, and another share holds it and may launch."""
        lent = self.reserved_for is not None and self.holder not in {None, self.reserved_for}
        return lent and self.shares[self.holder or ""].phase is LeasePhase.OPEN

    def standing(self, key: str, now_ns: int) -> account.Standing:
        account = self.shares[key].account
        account.pass_time(now_ns)
        return account.standing(self._surplus_ns)

    def want(self, key: str, now_ns: int) -> list[Command]:
        self.shares[key].idle.end(now_ns, self._worth_ns(now_ns))
        return super().want(key, now_ns)

    def reserve(self, key: str, now_ns: int) -> list[Command]:
        """Reserve the GPU for this member, which begins as soon as its whole gang can."""
        self.reserved_for = key
        self.blocked = True
        self._requeue(key, now_ns)
        return self.take_back(now_ns)

    def begin(self, now_ns: int) -> list[Command]:
        key = self.reserved_for or ""
        self.blocked = False
        self._turn_ns = now_ns
        if not self.shares[key].asked and self.shares[key].phase is None:
            self.shares[key].idle.begin(now_ns)
        self.changed.add(key)
        return self.decide(now_ns)

    def extend_turn(self, now_ns: int) -> None:
        """Start another turn right after the current one, if that one is over."""
        key = self.reserved_for
        if key is None or not self.is_over(key):
            return
        self._turn_ns = now_ns
        if self.holder == key:
            self._renew(key, now_ns, self._first_eligible(now_ns))

    def stop(self, now_ns: int, *, since_ns: int | None = None) -> list[Command]:
        """End the turn (since_ns: when it first ended). No share begins before the gang has given back all its GPUs."""
        key = self.reserved_for
        if key is None:
            return []
        self.blocked = True
        self._rest(key, now_ns)
        if self.holder != key or self.shares[key].phase is not LeasePhase.OPEN:
            return []
        revoke = self._revoke(key, now_ns)
        self.shares[key].revoked_ns = now_ns if since_ns is None else since_ns
        return [revoke]

    def take_back(self, now_ns: int) -> list[Command]:
        return [self._revoke(self.holder or "", now_ns)] if self.is_lent else []

    def resume(self, now_ns: int) -> list[Command]:
        """Let the member launch once more after its turn, until `stop` is called again."""
        key = self.reserved_for or ""
        drains = self._draining == key
        if drains:
            self._draining = None
        self._open(key, now_ns)
        self.shares[key].due_ns = None
        return [Open(key, again=drains)]

    def give_back(self, now_ns: int) -> None:
        if self.reserved_for is not None:
            self._rest(self.reserved_for, now_ns)
        super().give_back(now_ns)

    def set_exempt(self, key: str, now_ns: int, *, exempt: bool) -> None:
        """Exempt the member from charges while it is held up by a GPU that it waits for, or end that."""
        share = self.shares[key]
        if share.exempt == exempt:
            return
        share.exempt = exempt
        if share.phase is LeasePhase.OPEN:
            self._pay(key, now_ns, self._first_eligible(now_ns))
        elif share.phase in {LeasePhase.REVOKED, LeasePhase.DRAINING}:
            self._set(key, now_ns, charge=self._debt(key))

    def decide(self, now_ns: int) -> list[Command]:
        """Serve the next share, and charge the member for a reserved GPU that others wait for."""
        commands = super().decide(now_ns)
        key = self.reserved_for
        if key is not None and self.shares[key].phase is None:
            best = self._first_eligible(now_ns) if self.holder is None and not self.blocked else None
            if best is not None:
                self._pay(key, now_ns, best)
            elif self.shares[key].account.charge is not PayingAccount.NOTHING:
                self._set(key, now_ns, charge=PayingAccount.NOTHING)
        return commands

    def is_over(self, key: str) -> bool:
        """Whether another share may follow this one. The gaps count as part of a member's turn."""
        due_ns = self._turn_due_ns() if key == self.reserved_for else None
        return super().is_over(key) or (due_ns is not None and self._now_ns >= due_ns)

    def due_ns(self) -> int | None:
        times = [super().due_ns(), self._turn_due_ns()]
        if self.reserved_for is not None and self.holder is None and not self.blocked and self.waiting.able:
            lent_from_ns = self._lent_from_ns(self.reserved_for, self._now_ns)
            times += [lent_from_ns] if self._now_ns < lent_from_ns else []
        return min((time for time in times if time is not None), default=None)

    def _turn_due_ns(self) -> int | None:
        """Return when the member's turn on this GPU is over; None while it is lent or no other share waits."""
        if self.reserved_for is None or self.blocked or self.holder not in {None, self.reserved_for}:
            return None
        if self._first_eligible(self._now_ns) is None:
            return None
        return self._turn_ns + self._length_ns(self.shares[self.reserved_for])

    def _next(self, now_ns: int) -> str | None:
        if self.reserved_for is not None:
            reserved_for = self.shares[self.reserved_for]
            reserved_for.account.pass_time(now_ns)
            if reserved_for.asked and reserved_for.phase in READY:
                return self.reserved_for if reserved_for.account.lasts_ns() != 0 else None
            if now_ns < self._lent_from_ns(self.reserved_for, now_ns):
                return None
        return super()._next(now_ns)

    def _review(self, key: str, now_ns: int) -> list[Command]:
        if key == self.reserved_for:
            return []
        if self.reserved_for is not None and self.shares[self.reserved_for].asked and not self.blocked and self.is_lent:
            return self.take_back(now_ns)
        return super()._review(key, now_ns)

    def _end(self, key: str, now_ns: int) -> None:
        began = self.shares[key].phase is not None
        super()._end(key, now_ns)
        if began and key == self.reserved_for and not self.blocked:
            self.shares[key].idle.begin(now_ns)

    def _rest(self, key: str, now_ns: int) -> None:
        """End the gap with the turn, and stop charging for it."""
        share = self.shares[key]
        share.idle.interrupt(now_ns, self._worth_ns(now_ns))
        if share.phase is None:
            self._set(key, now_ns, charge=PayingAccount.NOTHING)

    def _lent_from_ns(self, key: str, now_ns: int) -> int:
        return self.shares[key].idle.lent_from_ns(now_ns, self._lengths.lend_ns, self._worth_ns(now_ns))

    def _worth_ns(self, now_ns: int) -> int:
        """Return the shortest gap worth lending: several times what the borrower takes to give the GPU back."""
        borrower = self.holder if self.holder not in {None, self.reserved_for} else self.waiting.first(now_ns)
        drain_ns = self.shares[borrower].drain_ns if borrower is not None else 0.0
        return min(max(self._lengths.worth_ns, int(self._lengths.drains * drain_ns)), self._lengths.longest_ns)
