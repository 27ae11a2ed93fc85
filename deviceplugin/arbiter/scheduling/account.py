"""The balances of a share on one GPU, and which share they put first. Pure: time is a parameter, in nanoseconds.

Three balances, updated at every event:

  owed     guaranteed time that the share has not had yet. Grows by `request` while the share wants the GPU, and
           otherwise only up to a small credit, so that no share saves up an hour. Time under the guarantee is
           subtracted, and so is all time that the share keeps the GPU beyond its turn: that is its debt.
  room     what the limit still allows: a bucket that fills at the rate `limit` and drains at rate 1 while the share
           holds the GPU. Overruns are paid in full: after a kernel of one minute, a share with a limit of 10 %
           pauses for nine.
  surplus  unclaimed time that the share has had, divided by its weight.

Debts in either direction are capped at ten seconds: a guarantee is not made up for without end. A sliding window would
be simpler for the first two, but it forgets a debt after ten seconds, and repeats every burst ten seconds later. Over
any ten seconds in which a share wants the GPU, these balances guarantee the same as the window.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import itertools
from collections.abc import Iterator, Mapping
from typing import Final

MILLISECOND_NS: Final = 1_000_000
WINDOW_NS: Final = 10_000 * MILLISECOND_NS
CREDIT_NS: Final = 50 * MILLISECOND_NS
LATENCY_CREDIT_NS: Final = 100 * MILLISECOND_NS
BURST_NS: Final = 50 * MILLISECOND_NS
# One run and one pause of a share at its limit. Shorter periods would spend too much time on switching.
PERIOD_NS: Final = 150 * MILLISECOND_NS
LATENCY_PERIOD_NS: Final = 100 * MILLISECOND_NS
MIN_TURN_NS: Final = 20 * MILLISECOND_NS  # even with the lowest limit
# Headroom in the bucket: it goes on filling while a timer is late, so no time is lost.
SPARE_NS: Final = 10 * MILLISECOND_NS
MIN_WEIGHT: Final = 0.01  # of a share without a request, in the split of unclaimed time
NOTHING_NS: Final = 1.0  # smaller debts count as zero, because balances are sums of fractions

# Whether it is of the latency class and owed time; the time owed; how far its surplus is behind.
Standing = tuple[bool, float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Entitlement:
    """A share's request and limit of one GPU's time, in percent. `latency`: the share is of the latency class."""

    request_percent: int
    limit_percent: int
    latency: bool = False


class PayingAccount(enum.Enum):
    """The balance that pays for the time that passes."""

    NOTHING = "nothing"
    OWED = "owed"
    SURPLUS = "surplus"
    ALONE = "alone"  # no other share wants the GPU: pays owed time out, and works a debt off


class Account:
    """The balances of one share on one GPU. `set` changes `wanting` and `charge`."""

    def __init__(self, entitlement: Entitlement, now_ns: int) -> None:
        self.entitlement = entitlement
        self.held_ns = 0  # all time charged so far
        self.owed_ns = 0.0
        self.room_ns = float(BURST_NS)
        self.surplus_ns = 0.0
        self.wanting = False
        self.charge = PayingAccount.NOTHING
        self.at_ns = now_ns

    def change(self, entitlement: Entitlement, now_ns: int) -> None:
        self.pass_time(now_ns)
        self.entitlement = entitlement

    def held_by_ns(self, now_ns: int) -> int:
        return self.held_ns + (max(0, now_ns - self.at_ns) if self.charge is not PayingAccount.NOTHING else 0)

    def set(self, now_ns: int, *, wanting: bool | None = None, charge: PayingAccount | None = None) -> None:
        self.pass_time(now_ns)
        if wanting is not None:
            self.wanting = wanting
        if charge is not None:
            self.charge = charge

    def pass_time(self, now_ns: int) -> None:
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
        # Let the bucket grow to what the share is owed, so that it can spend that.
        most_ns = max(BURST_NS, self.room_ns - passed_ns, self.owed_ns if self.wanting else 0)
        self.room_ns = min(most_ns, self.room_ns + filled_ns)

    @property
    def weight(self) -> float:
        return max(self.entitlement.request_percent / 100, MIN_WEIGHT)

    @property
    def limited(self) -> bool:
        return self.entitlement.limit_percent < 100

    def eligible(self) -> bool:
        """Whether the limit allows a turn to begin."""
        return not self.limited or self.room_ns >= self._least_room_ns - 1

    def eligible_in_ns(self) -> int:
        """Return how long until the limit allows a turn, if the share holds nothing."""
        if self.eligible():
            return 0
        return int((self._least_room_ns - 1 - self.room_ns) * 100 / max(1, self.entitlement.limit_percent)) + 1

    def lasts_ns(self) -> int | None:
        """Return how long the share may hold the GPU before its limit ends the turn; None without a limit."""
        if not self.limited:
            return None
        return max(0, int(self.room_ns * 100 / (100 - self.entitlement.limit_percent)))

    def is_owed(self) -> bool:
        return self.owed_ns > NOTHING_NS

    def charge_of_turn(self) -> PayingAccount:
        """Return the balance that pays for a turn that begins now."""
        return PayingAccount.OWED if self.is_owed() else PayingAccount.SURPLUS

    def standing(self, surplus_ns: float) -> Standing:
        """Return a rank with the same order as `choose`: the greatest is served first. Ranks of GPUs are comparable.

        surplus_ns: the highest surplus that a share served from unclaimed time has had on the account's GPU.
        """
        owed_ns = self.owed_ns if self.is_owed() else 0.0
        return owed_ns > 0 and self.entitlement.latency, owed_ns, surplus_ns - self.surplus_ns

    def interrupts(self, holder: Account) -> bool:
        """Whether this share, which has just begun to wait, may interrupt the holder's turn."""
        if not self.eligible() or not self.entitlement.latency or not self.is_owed():
            return False
        return not (holder.entitlement.latency and holder.is_owed())

    @property
    def _least_room_ns(self) -> float:
        """The room that a turn needs to begin: enough for the share's part of a period."""
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
            # The share is being served, so what accrues meanwhile is capped at the credit.
            owed_ns = min(owed_ns, max(self.owed_ns, self._credit_ns))
        elif self.wanting or self.charge is not PayingAccount.NOTHING:
            # Time owed by an earlier, higher request runs down rather than being lost.
            most_ns = max(request * WINDOW_NS, self._credit_ns, self.owed_ns - passed_ns)
            owed_ns = min(owed_ns, most_ns)
        elif owed_ns > self._credit_ns:
            # Time above the credit runs down rather than being lost at once: a program that waits for each kernel wants
            # nothing for a moment between two of them.
            owed_ns = max(self._credit_ns, self.owed_ns - passed_ns)
        self.owed_ns = max(-float(WINDOW_NS), owed_ns)


def choose(candidates: Mapping[str, Account]) -> str | None:
    """Return the key of the share to serve, among those whose limits allow it. Ties go to the first in the mapping.

    Shares of the latency class go first while they are owed time, then the share that is owed most. If no share is owed
    time, the one with the least unclaimed time for its weight is next.
    """
    able = {key: account for key, account in candidates.items() if account.eligible()}
    if not able:
        return None
    owed = {key: account for key, account in able.items() if account.is_owed()}
    urgent = {key: account for key, account in owed.items() if account.entitlement.latency}
    if owed:
        return max(urgent or owed, key=lambda key: owed[key].owed_ns)
    return min(able, key=lambda key: able[key].surplus_ns)


_Entry = tuple[float, int, str]  # the sort key, then the order of arrival
_Queue = tuple[int, bool] | str  # request and class, or one of the two below
_SURPLUS: Final = "surplus"
_THROTTLED: Final = "throttled"


class WaitQueue:
    """The shares that wait for one GPU, sorted. Late shares, which are charged while they wait, are in no queue.

    Debts change all the time, but they grow at the same rate for equal requests, so the order among these stays the
    same. There is a queue for each request, and only the heads of the queues are compared. Requests add up to at most
    100 %, so there are at most thirteen different ones, however many shares wait.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._charged: set[str] = set()
        self._queues: dict[_Queue, list[_Entry]] = {_SURPLUS: [], _THROTTLED: []}
        self._places: dict[str, list[tuple[_Queue, _Entry]]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._accounts)

    def __contains__(self, key: object) -> bool:
        return key in self._accounts

    def __iter__(self) -> Iterator[str]:
        return iter(self._accounts)

    def add(self, key: str, account: Account, now_ns: int) -> None:
        """Add a share, or re-sort it after a change other than the passing of time."""
        self.discard(key)
        account.pass_time(now_ns)
        self._accounts[key] = account
        if account.charge is not PayingAccount.NOTHING:
            self._charged.add(key)
            return
        number = next(self._numbers)
        if not account.eligible():
            self._enter(key, _THROTTLED, (now_ns + account.eligible_in_ns(), number, key))
            return
        percent = account.entitlement.request_percent
        ahead = percent / 100 * now_ns - account.owed_ns
        self._enter(key, (percent, account.entitlement.latency), (ahead, number, key))
        self._enter(key, _SURPLUS, (account.surplus_ns, number, key))

    def discard(self, key: str) -> None:
        if self._accounts.pop(key, None) is None:
            return
        self._charged.discard(key)
        for name, entry in self._places.pop(key, ()):
            queue = self._queues[name]
            del queue[bisect.bisect_left(queue, entry)]
            if not queue and not isinstance(name, str):
                del self._queues[name]

    def first(self, now_ns: int) -> str | None:
        """Return the share to serve now, or None if no limit allows one."""
        return choose(self.heads(now_ns)) if self._accounts else None

    @property
    def able(self) -> bool:
        """Whether a share waits that was not throttled by its limit when last checked."""
        return bool(self._queues[_SURPLUS])

    def heads(self, now_ns: int) -> Mapping[str, Account]:
        """Return the heads of the queues, one of which is the first share."""
        self._admit_eligible(now_ns)
        heads = {queue[0][2] for name, queue in self._queues.items() if queue and name != _THROTTLED}
        candidates = {key: self._accounts[key] for key in sorted(heads | self._charged)}
        for account in candidates.values():
            account.pass_time(now_ns)
        return candidates

    def next_ns(self, now_ns: int) -> int | None:
        """Return when the limit of the next throttled share lets it begin; None if no share is throttled."""
        if not self._accounts:
            return None
        times = [now_ns + self._accounts[key].eligible_in_ns() for key in self._charged]
        throttled = self._queues[_THROTTLED]
        if throttled:
            times.append(int(throttled[0][0]))
        return min(times, default=None)

    def _enter(self, key: str, name: _Queue, entry: _Entry) -> None:
        bisect.insort(self._queues.setdefault(name, []), entry)
        self._places.setdefault(key, []).append((name, entry))

    def _admit_eligible(self, now_ns: int) -> None:
        throttled = self._queues[_THROTTLED]
        while throttled and throttled[0][0] <= now_ns:
            key = throttled[0][2]
            self.add(key, self._accounts[key], now_ns)
