"""WriteBackoff: when to try again what the API server refused to write for a pod: ever later. Pure."""

from __future__ import annotations

from typing import Final

FIRST_SECONDS: Final = 2.0
MAX_SECONDS: Final = 900.0


class WriteBackoff:
    """By uid of the pod. Times are seconds of one clock; `max_seconds`: the longest pause."""

    def __init__(self, *, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._pauses: dict[str, tuple[float, float]] = {}  # not before, the pause after the next one

    def __contains__(self, uid: str) -> bool:
        """Whether the last try failed."""
        return uid in self._pauses

    def wait_seconds(self, uid: str, *, now: float) -> float:
        """How long to wait before the next try; 0 when now will do."""
        not_before, _ = self._pauses.get(uid, (now, 0.0))
        return max(0.0, not_before - now)

    def failed(self, uid: str, *, now: float, max_seconds: float | None = None) -> float:
        """A try failed; return how long to wait before the next, at most so long."""
        # Who was not tried again for so long has gone.
        self._pauses = {
            known_uid: known for known_uid, known in self._pauses.items() if now < known[0] + self._max_seconds
        }
        _, pause = self._pauses.get(uid, (now, FIRST_SECONDS))
        most = self._max_seconds if max_seconds is None else max_seconds
        pause = min(pause, most)
        self._pauses[uid] = now + pause, min(2 * pause, most)
        return pause

    def succeeded(self, uid: str) -> None:
        """A try did not fail."""
        self._pauses.pop(uid, None)
