"""The shares that wait for one GPU, in the order in which they are served. Pure: time is a parameter, in nanoseconds.

Debts change all the time, but they grow at the same rate for equal requests, so the order among these stays the same.
There is a queue for each request, and only the heads of the queues are compared. Requests add up to at most 100 %, so
there are at most thirteen different ones, however many shares wait.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from typing import Final

from deviceplugin.arbiter.scheduling import next_share
from deviceplugin.arbiter.scheduling.account import Account, PayingAccount

_Entry = tuple[float, int, str]  # the sort key, then the order of arrival
_Queue = tuple[int, bool] | str  # request and class, or one of the two below
_SURPLUS: Final = "surplus"
_THROTTLED: Final = "throttled"


class WaitQueue:
    """The waiting shares. Late shares, which are charged while they wait, are in no queue."""

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
        """Remove the share; no-op if absent."""
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
        return next_share.choose(self.heads(now_ns)) if self._accounts else None

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
        """Move shares whose limits allow them to begin by now to their queues."""
        throttled = self._queues[_THROTTLED]
        while throttled and throttled[0][0] <= now_ns:
            key = throttled[0][2]
            self.add(key, self._accounts[key], now_ns)
