"""Who waits for one GPU, kept in the order in which they are served. Pure: time is a parameter, in nanoseconds.

What shares are owed changes all the time, but two of one request are owed more at the same rate, so the one that is
ahead stays ahead. There is a queue for each request, therefore, and only the heads of the queues are compared: requests
add up to 100 at most, so that there are no more than thirteen different ones, however many shares there are.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from typing import Final

from deviceplugin.arbiter.scheduling import next_share
from deviceplugin.arbiter.scheduling.account import Account, PayingAccount

_Entry = tuple[float, int, str]  # the order, then who came first
_Queue = tuple[int, bool] | str  # of a request and class, or one of these two
_SURPLUS: Final = "surplus"
_THROTTLED: Final = "throttled"


class WaitQueue:
    """Those that want the GPU and do not have it. Who is charged meanwhile, being late, is in no queue."""

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
        """It waits; once more, if it waits already and something else of it than the time has changed."""
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
        """It waits no more, if it did."""
        if self._accounts.pop(key, None) is None:
            return
        self._charged.discard(key)
        for name, entry in self._places.pop(key, ()):
            queue = self._queues[name]
            del queue[bisect.bisect_left(queue, entry)]
            if not queue and not isinstance(name, str):
                del self._queues[name]

    def first(self, now_ns: int) -> str | None:
        """Who is to be served now, if the limit of anybody lets them begin."""
        return next_share.choose(self.heads(now_ns)) if self._accounts else None

    @property
    def able(self) -> bool:
        """Whether somebody waits who was seen not to be kept back by a limit."""
        return bool(self._queues[_SURPLUS])

    def heads(self, now_ns: int) -> Mapping[str, Account]:
        """Some of them, of whom one is the first."""
        self._admit_eligible(now_ns)
        heads = {queue[0][2] for name, queue in self._queues.items() if queue and name != _THROTTLED}
        candidates = {key: self._accounts[key] for key in sorted(heads | self._charged)}
        for account in candidates.values():
            account.pass_time(now_ns)
        return candidates

    def next_ns(self, now_ns: int) -> int | None:
        """When the limit of another one lets it begin; None: it keeps nobody back."""
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
        """Those whose limit has kept them back until now."""
        throttled = self._queues[_THROTTLED]
        while throttled and throttled[0][0] <= now_ns:
            key = throttled[0][2]
            self.add(key, self._accounts[key], now_ns)
