"""What is asked of one GPU by whoever looks at all of them (`gangs`): the turns of shares that are served together.

A share of several GPUs is served on all of them at once. So each of them is kept for it (`keep`), lets it begin
(`begin`), ends its turn (`stop`), and is given back (`give_back`).
"""

from __future__ import annotations

from deviceplugin.arbiter import next_share
from deviceplugin.arbiter.lease_scheduler import LeaseScheduler
from deviceplugin.arbiter.seat import Command, LeasePhase, Open


class CoscheduledGpu(LeaseScheduler):
    """One GPU, whose shares may be served with those of others."""

    def join_gang(self, key: str, now_ns: int) -> None:
        """From now on it is served together with others."""
        self.seats[key].member = True
        self._waiting.discard(key)
        self._refile(key, now_ns)

    @property
    def vacant(self) -> bool:
        """Whether somebody can begin, or the turn of who is there is over if another one goes first."""
        return self.holder is None or self.is_over(self.holder)

    def standing(self, key: str, now_ns: int) -> next_share.Standing:
        """How soon it is to be served; comparable with others, also of other GPUs."""
        account = self.seats[key].account
        account.pass_time(now_ns)
        return next_share.standing(account, self._surplus_ns)

    def first(self, now_ns: int) -> str | None:
        """The first of those that wait for this GPU alone."""
        return self._waiting.first(now_ns)

    def keep(self, key: str, now_ns: int) -> list[Command]:
        """Serve nobody else: this member begins as soon as all of its gang can."""
        self.kept_for, self.barred = key, True
        self._refile(key, now_ns)
        holds = self.holder not in {None, key} and self.seats[self.holder or ""].phase is LeasePhase.OPEN
        return [self._revoke(self.holder or "", now_ns)] if holds else []

    def begin(self, now_ns: int) -> list[Command]:
        """The turn of the gang for which this GPU is kept begins."""
        self.barred = False
        self._lent_from_ns = now_ns + self._lengths.lend_ns
        self.changed.add(self.kept_for or "")
        return self.decide(now_ns)

    def prolong(self, now_ns: int) -> None:
        """It goes on: another turn, if there is anybody for whom it could end."""
        if self.holder is not None and self.holder == self.kept_for and self.is_over(self.holder):
            self._renew(self.holder, now_ns, self._best(now_ns))

    def stop(self, now_ns: int) -> list[Command]:
        """It is over, but nobody else begins until the gang has given back all of its GPUs."""
        self.barred = True
        key = self.kept_for
        stops = key is not None and self.holder == key and self.seats[key].phase is LeasePhase.OPEN
        return [self._revoke(key or "", now_ns)] if stops else []

    def let_in(self, now_ns: int) -> list[Command]:
        """Although its turn is over, it may launch once more, until it is stopped again."""
        key = self.kept_for or ""
        self._open(key, now_ns)
        self.seats[key].due_ns = None
        return [Open(key)]

    def spare(self, key: str, now_ns: int, *, spared: bool) -> None:
        """It pays nothing while it is kept from what it waits for."""
        seat = self.seats[key]
        if seat.spared == spared:
            return
        seat.spared = spared
        if seat.phase is LeasePhase.OPEN:
            self._pay(key, now_ns, self._best(now_ns))
        elif seat.phase in {LeasePhase.REVOKED, LeasePhase.DRAINING}:
            self._set(key, now_ns, charge=self._debt(key))
