"""WriteBackoff: exponential backoff for writes to pods that the API server rejected. Pure."""

from __future__ import annotations

from typing import Final

FIRST_SECONDS: Final = 2.0
MAX_SECONDS: Final = 900.0


class WriteBackoff:
    """Backoff by UID of the pod. Times are seconds of one clock; `max_seconds`: the longest pause."""

    def __init__(self, *, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._pauses: dict[str, tuple[float, float]] = {}  # time of the next attempt, and the pause after that

    def __contains__(self, uid: str) -> bool:
        """Whether the last attempt failed."""
        return uid in self._pauses

    def wait_seconds(self, uid: str, *, now: float) -> float:
        """Return how long to wait before the next attempt."""
        not_before, _ = self._pauses.get(uid, (now, 0.0))
        return max(0.0, not_before - now)

    def failed(self, uid: str, *, now: float, max_seconds: float | None = None) -> float:
        """Record a failed attempt; return the pause before the next, at most `max_seconds`."""
        # Pods without an attempt for so long are gone.
        self._pauses = {
            known_uid: known for known_uid, known in self._pauses.items() if now < known[0] + self._max_seconds
        }
        _, pause = self._pauses.get(uid, (now, FIRST_SECONDS))
        most = self._max_seconds if max_seconds is None else max_seconds
        pause = min(pause, most)
        self._pauses[uid] = now + pause, min(2 * pause, most)
        return pause

    def succeeded(self, uid: str) -> None:
        self._pauses.pop(uid, None)
