"""WriteBackoff: when to try again what the API server refused to write for a pod: ever later. Pure."""

from __future__ import annotations

from typing import Final

FIRST_SECONDS: Final = 2.0
MAX_SECONDS: Final = 900.0


class WriteBackoff:
    """By uid of the pod. Times are seconds of one clock; `most_seconds`: the longest pause."""

    def __init__(self, *, most_seconds: float = MAX_SECONDS) -> None:
        self._most_seconds = most_seconds
        self._of: dict[str, tuple[float, float]] = {}  # not before, the pause after the next one

    def __contains__(self, uid: str) -> bool:
        """Whether the last try failed."""
        return uid in self._of

    def wait_seconds(self, uid: str, *, now: float) -> float:
        """How long to wait before the next try; 0 when now will do."""
        not_before, _ = self._of.get(uid, (now, 0.0))
        return max(0.0, not_before - now)

    def failed(self, uid: str, *, now: float, most_seconds: float | None = None) -> float:
        """A try failed; return how long to wait before the next, at most so long."""
        # Who was not tried again for so long has gone.
        self._of = {known_uid: known for known_uid, known in self._of.items() if now < known[0] + self._most_seconds}
        _, pause = self._of.get(uid, (now, FIRST_SECONDS))
        most = self._most_seconds if most_seconds is None else most_seconds
        pause = min(pause, most)
        self._of[uid] = now + pause, min(2 * pause, most)
        return pause

    def worked(self, uid: str) -> None:
        """A try did not fail."""
        self._of.pop(uid, None)
