"""The containers that are connected, or were a moment ago: how many connections each has, and how much it may say.

How fast is remembered for a while after its last connection, or one that closes and connects again could talk as fast
as it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deviceplugin.arbiter.rate_limiter import RateLimiter
from deviceplugin.host.identity import Container

MESSAGES_PER_SECOND: Final = 200.0
LEASE_MESSAGES_PER_SECOND: Final = 2000.0  # of one container: five hundred turns
MESSAGE_BURST: Final = 2048
LINES_PER_SECOND: Final = 1.0  # of the log: it is other people's, too
LINE_BURST: Final = 1024  # two for each process that a container can have
# Longer than any pace is behind: then a new one is no different.
FORGOTTEN_SECONDS: Final = max(2 * MESSAGE_BURST / MESSAGES_PER_SECOND, LINE_BURST / LINES_PER_SECOND)


class ConnectedContainer:
    """How many connections a container has, and how much it may still say."""

    def __init__(self) -> None:
        self.connections = 0
        self.pace = RateLimiter(per_second=MESSAGES_PER_SECOND, burst=MESSAGE_BURST)
        self.lease_pace = RateLimiter(per_second=LEASE_MESSAGES_PER_SECOND, burst=MESSAGE_BURST)
        self._lines = RateLimiter(per_second=LINES_PER_SECOND, burst=LINE_BURST)
        self._silent_until = float("-inf")
        self._left_out = 0

    def line(self, now: float) -> int | None:
        """How many lines were left out before one more in the log; None if this one is, too."""
        if now < self._silent_until:
            self._left_out += 1
            return None
        self._silent_until = now + self._lines.take(now)
        left_out, self._left_out = self._left_out, 0
        return left_out


class ConnectionLimits:
    """All of them. `clock`: in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._there: dict[Container, ConnectedContainer] = {}
        self._gone: dict[Container, tuple[float, ConnectedContainer]] = {}

    def connections_of(self, container: Container) -> int:
        """How many it has now."""
        return self._there[container].connections if container in self._there else 0

    def came(self, container: Container) -> ConnectedContainer:
        """It has one connection more."""
        if container not in self._there:
            _, known = self._gone.pop(container, (0.0, ConnectedContainer()))
            self._there[container] = known
        guest = self._there[container]
        guest.connections += 1
        return guest

    def left(self, container: Container) -> None:
        """It has one connection less."""
        guest = self._there[container]
        guest.connections -= 1
        if guest.connections:
            return
        now = self._clock()
        self._gone = {container: known for container, known in self._gone.items() if now - known[0] < FORGOTTEN_SECONDS}
        self._gone[container] = now, self._there.pop(container)
