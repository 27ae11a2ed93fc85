"""Pacing: yields the event loop, which also answers reviews, during long work; backs off after rejected writes."""

from __future__ import annotations

import asyncio
import math
import weakref
from typing import Final

WORK_SECONDS: Final = 0.01
REST_SECONDS: Final = 0.005

_rested: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float]] = weakref.WeakKeyDictionary()


async def let_others_run() -> None:
    """Yield to other tasks, and sleep if the last sleep is `WORK_SECONDS` ago.

    An answer takes several rounds of the event loop: accept, read, write. `asyncio.sleep(0)` yields for one round only,
    so an answer would wait for several pieces of work.
    """
    loop = asyncio.get_running_loop()
    if loop.time() - _rested.get(loop, -math.inf) < WORK_SECONDS:
        await asyncio.sleep(0)
        return
    await asyncio.sleep(REST_SECONDS)
    _rested[loop] = loop.time()


FIRST_SECONDS: Final = 2.0
MAX_SECONDS: Final = 900.0


class WriteBackoff:
    """Backoff by UID of the pod. Times are seconds of one clock; `max_seconds`: the longest pause."""

    def __init__(self, *, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._pauses: dict[str, tuple[float, float]] = {}  # time of the next attempt, and the pause after that

    def __contains__(self, uid: str) -> bool:
        return uid in self._pauses

    def wait_seconds(self, uid: str, *, now: float) -> float:
        not_before, _ = self._pauses.get(uid, (now, 0.0))
        return max(0.0, not_before - now)

    def failed(self, uid: str, *, now: float, max_seconds: float | None = None) -> float:
        """Record a failed attempt; return the pause before the next, at most `max_seconds`."""
        # Pods without an attempt for so long are gone.
        self._pauses = {old_uid: known for old_uid, known in self._pauses.items() if now < known[0] + self._max_seconds}
        _, pause = self._pauses.get(uid, (now, FIRST_SECONDS))
        most = self._max_seconds if max_seconds is None else max_seconds
        pause = min(pause, most)
        self._pauses[uid] = now + pause, min(2 * pause, most)
        return pause

    def succeeded(self, uid: str) -> None:
        self._pauses.pop(uid, None)
