"""GPUs on a virtual clock: the arbiter's scheduler, and shares that launch like real programs. Nothing here sleeps.

A `Worker` is a share's program on one GPU. While it has work and its gate is open, it keeps the GPU busy. After a
revoke, its last work takes `drain_ns` to run out. `bursts` make it come and go.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
from collections.abc import Callable

from deviceplugin.arbiter.scheduling.account import MILLISECOND_NS, Entitlement
from deviceplugin.arbiter.scheduling.gpu_share import Command, LeasePhase, Open
from deviceplugin.arbiter.scheduling.lease_scheduler import LeaseScheduler

MS = MILLISECOND_NS
SECOND = 1000 * MS
MESSAGE_NS = MS // 10


@dataclasses.dataclass
class Worker:
    """A share's behaviour. `bursts`: repeating pairs of busy and idle nanoseconds; empty: it always wants the GPU."""

    given: Entitlement
    drain_ns: int = 2 * MS
    bursts: tuple[tuple[int, int], ...] = ()
    starts_ns: int = 0
    closes: bool = True  # reports its closed gate before its work has run out
    closes_ns: int = 0  # this long before
    open: bool = False
    working: bool = False
    doing: bool = False


@dataclasses.dataclass(frozen=True)
class Span:
    """An interval in which a share was charged, or wanted the GPU."""

    begin_ns: int
    end_ns: int


class BrokenLawError(AssertionError):
    """A law does not hold."""


class VirtualGpu:
    """One GPU with its workers. `charged` and `wanted` record what happened, by worker."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = {str(number): worker for number, worker in enumerate(workers)}
        self.turns = LeaseScheduler()
        self.now_ns = 0
        self.charged: dict[str, list[Span]] = {key: [] for key in self.workers}
        self.wanted: dict[str, list[Span]] = {key: [] for key in self.workers}
        self.since_ns = dict.fromkeys(self.workers, 0)  # since when each has its current amounts
        self.handovers = 0
        self._order = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._held = dict.fromkeys(self.workers, 0)
        for key, worker in self.workers.items():
            self._do(self.turns.join(key, worker.given, 0))
            self._at(worker.starts_ns, lambda key=key: self._begin(key, 0))  # type: ignore[misc]

    def run(self, until_ns: int) -> None:
        """Let time pass."""
        while True:
            due = self.turns.due_ns()
            first = self._events[0][0] if self._events else until_ns
            at = min(first, until_ns, max(due, self.now_ns) if due is not None else until_ns)
            self._pass(at)
            if at >= until_ns and first > until_ns:
                return
            if self._events and self._events[0][0] <= at:
                heapq.heappop(self._events)[2]()
            else:
                before = self.turns.due_ns()
                self._do(self.turns.tick(at))
                if at >= until_ns:
                    return
                if before == self.turns.due_ns() and before is not None and before <= at:
                    raise BrokenLawError(f"the turn does not go on at {at}")

    def give(self, when_ns: int, key: str, entitlement: Entitlement) -> None:
        """Change a worker's amounts at this time. From then on the laws apply to the new ones."""

        def change() -> None:
            self.workers[key].given = entitlement
            self.since_ns[key] = self.now_ns
            self._do(self.turns.join(key, entitlement, self.now_ns))

        self._at(when_ns, change)

    def _pass(self, to_ns: int) -> None:
        if to_ns < self.now_ns:
            raise BrokenLawError("time went back")
        for key, seat in self.turns.shares.items():
            seat.account.pass_time(to_ns)
            got = seat.account.held_ns - self._held[key]
            self._held[key] = seat.account.held_ns
            if got:
                _extend(self.charged[key], self.now_ns, to_ns)
            if self.workers[key].doing and to_ns > self.now_ns:
                _extend(self.wanted[key], self.now_ns, to_ns)
        self.now_ns = to_ns

    def _at(self, when_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_ns, next(self._order), what))

    def _begin(self, key: str, burst: int) -> None:
        worker = self.workers[key]
        worker.doing = True
        if not worker.open:
            self._do(self.turns.want(key, self.now_ns))
        if worker.bursts:
            busy_ns, _ = worker.bursts[burst % len(worker.bursts)]
            self._at(self.now_ns + busy_ns, lambda: self._pause(key, burst))

    def _pause(self, key: str, burst: int) -> None:
        worker = self.workers[key]
        worker.doing = False
        _, idle_ns = worker.bursts[burst % len(worker.bursts)]
        if worker.open and self.turns.contended(key):
            worker.open = False
            self._at(self.now_ns + worker.drain_ns, lambda: self._released(key))
        self._at(self.now_ns + max(idle_ns, worker.drain_ns + MS), lambda: self._begin(key, burst + 1))

    def _released(self, key: str) -> None:
        if not self.workers[key].open:
            self._do(self.turns.released(key, self.now_ns))
            self._want_again(key)

    def _want_again(self, key: str) -> None:
        if self.workers[key].doing and not self.workers[key].open:
            self._do(self.turns.want(key, self.now_ns))

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            worker = self.workers[command.key]
            if isinstance(command, Open):
                self.handovers += 1
                worker.open = True
                continue
            worker.open = False
            if worker.closes:
                after_ns = MESSAGE_NS + max(0, worker.drain_ns - (worker.closes_ns or worker.drain_ns))
                self._at(self.now_ns + after_ns, lambda key=command.key: self._closed(key))  # type: ignore[misc]
            self._at(self.now_ns + MESSAGE_NS + worker.drain_ns, lambda key=command.key: self._released(key))  # type: ignore[misc]
            self._at(self.now_ns + MESSAGE_NS, lambda key=command.key: self._want_again(key))  # type: ignore[misc]
        self._check()

    def _closed(self, key: str) -> None:
        self._do(self.turns.closed(key, self.now_ns))

    def _check(self) -> None:
        """Check that no share waits that could be served, and that no two are open or pay at once, except a late
        one.
        """
        able = [
            key
            for key, seat in self.turns.shares.items()
            if seat.account.wanting
            and seat.phase is None
            and seat.account.room_ns >= choice_room(seat.account.entitlement)
        ]
        if able and self.turns.holder is None:
            raise BrokenLawError(f"at {self.now_ns} the GPU is idle while {able} wait")
        in_time = [seat for seat in self.turns.shares.values() if seat.phase not in {None, LeasePhase.LATE}]
        paying = [seat for seat in in_time if seat.account.charge.value != "nothing"]
        if len(paying) != bool(in_time):
            raise BrokenLawError(f"at {self.now_ns} {len(paying)} of {len(in_time)} pay")


def choice_room(entitlement: Entitlement) -> float:
    """Return the room that a share needs to begin, computed independently."""
    limit = entitlement.limit_percent / 100
    period = 100 * MS if entitlement.latency else 150 * MS
    return min(40 * MS, max(limit * period, 20 * MS) * (1 - limit)) if limit < 1 else float("-inf")


def _extend(spans: list[Span], begin_ns: int, end_ns: int) -> None:
    if spans and spans[-1].end_ns == begin_ns:
        spans[-1] = Span(spans[-1].begin_ns, end_ns)
    else:
        spans.append(Span(begin_ns, end_ns))


def within(spans: list[Span], begin_ns: int, end_ns: int) -> int:
    """Return how much of a window the spans cover; they are in order."""
    first = bisect.bisect_right(spans, begin_ns, key=lambda span: span.end_ns)
    after = bisect.bisect_left(spans, end_ns, key=lambda span: span.begin_ns)
    return sum(min(span.end_ns, end_ns) - max(span.begin_ns, begin_ns) for span in spans[first:after])


def check_ceiling(gpu: VirtualGpu, window_ns: int, slack_ns: int) -> None:
    """Check that no window has more of a share than its limit plus its burst."""
    for key, worker in gpu.workers.items():
        for span in gpu.charged[key]:
            begin_ns = max(span.begin_ns, gpu.since_ns[key])
            got = within(gpu.charged[key], begin_ns, begin_ns + window_ns)
            most = worker.given.limit_percent / 100 * window_ns + slack_ns + worker.drain_ns
            if worker.given.limit_percent < 100 and got > most:
                raise BrokenLawError(
                    f"{key} had {got / MS:.1f} ms of {window_ns / MS} from {begin_ns}, {most / MS} allowed"
                )


def check_floor(gpu: VirtualGpu, window_ns: int, slack_ns: int) -> None:
    """Check that every window in which a share always wants the GPU has its request."""
    for key, worker in gpu.workers.items():
        least = worker.given.request_percent / 100 * window_ns - slack_ns
        since_ns = max(gpu.since_ns.values())
        for span in gpu.wanted[key]:
            for begin in range(max(span.begin_ns, since_ns), span.end_ns - window_ns + 1, 500 * MS):
                got = within(gpu.charged[key], begin, begin + window_ns)
                if got < least:
                    raise BrokenLawError(
                        f"{key} had {got / MS:.1f} ms of {window_ns / MS} from {begin}, {least / MS} is its own"
                    )


def check_waits(gpu: VirtualGpu, longest_ns: int) -> None:
    """Check that no share with a request waits longer than that."""
    for key, worker in gpu.workers.items():
        if not worker.given.request_percent:
            continue
        for span in gpu.wanted[key]:
            for begin in range(span.begin_ns, span.end_ns - longest_ns, longest_ns // 4):
                if not within(gpu.charged[key], begin, begin + longest_ns):
                    raise BrokenLawError(f"{key} waited longer than {longest_ns / MS} ms from {begin}")


def shares(gpu: VirtualGpu, begin_ns: int, end_ns: int) -> list[float]:
    """Return each worker's part of a window, in percent."""
    return [100 * within(gpu.charged[key], begin_ns, end_ns) / (end_ns - begin_ns) for key in gpu.workers]
