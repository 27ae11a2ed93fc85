"""Limits per container: how many connections it has, and how fast its messages are read.

The rates are remembered for a while after the last connection. Otherwise a container could reconnect to send as fast as
it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deviceplugin.host.kernel_process import Container

MESSAGES_PER_SECOND: Final = 200.0
LEASE_MESSAGES_PER_SECOND: Final = 2000.0  # per container: five hundred turns
MESSAGE_BURST: Final = 2048
LINES_PER_SECOND: Final = 1.0  # in the log, which all containers share
LINE_BURST: Final = 1024  # two for each process that a container can have
# After this time every rate limiter is as good as new.
FORGOTTEN_SECONDS: Final = max(2 * MESSAGE_BURST / MESSAGES_PER_SECOND, LINE_BURST / LINES_PER_SECOND)


class RateLimiter:
    """Allows `burst` events at once and `per_second` in the long run. Pure: times are in seconds, on one clock.

    Its only state is the time at which the next event would be due if all came evenly. An event that comes early must
    wait, each one longer than the one before it.
    """

    def __init__(self, *, per_second: float, burst: int) -> None:
        self._interval = 1.0 / per_second
        self._ahead = burst * self._interval
        self._due = float("-inf")

    def take(self, now: float) -> float:
        """Count one event. Return the seconds that it should have waited, 0 if it is in time."""
        self._due = max(self._due, now - self._ahead) + self._interval
        return max(0.0, self._due - now)


class ConnectedContainer:
    """The connections and the rate limiters of one container."""

    def __init__(self) -> None:
        self.connections = 0
        self.messages = RateLimiter(per_second=MESSAGES_PER_SECOND, burst=MESSAGE_BURST)
        self.lease_messages = RateLimiter(per_second=LEASE_MESSAGES_PER_SECOND, burst=MESSAGE_BURST)
        self._lines = RateLimiter(per_second=LINES_PER_SECOND, burst=LINE_BURST)
        self._silent_until = float("-inf")
        self._suppressed = 0

    def suppressed_lines(self, now: float) -> int | None:
        """Return how many log lines were suppressed before this one, or None to suppress this one too."""
        if now < self._silent_until:
            self._suppressed += 1
            return None
        self._silent_until = now + self._lines.take(now)
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


class ConnectionLimits:
    """The containers that are connected, or were until recently. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._connected: dict[Container, ConnectedContainer] = {}
        self._gone: dict[Container, tuple[float, ConnectedContainer]] = {}

    def connections(self, container: Container) -> int:
        """Return how many connections the container has."""
        return self._connected[container].connections if container in self._connected else 0

    def connect(self, container: Container) -> ConnectedContainer:
        """Count a new connection of the container."""
        if container not in self._connected:
            _, known = self._gone.pop(container, (0.0, ConnectedContainer()))
            self._connected[container] = known
        connected = self._connected[container]
        connected.connections += 1
        return connected

    def disconnect(self, container: Container) -> None:
        """Remove one connection of the container."""
        connected = self._connected[container]
        connected.connections -= 1
        if connected.connections:
            return
        now = self._clock()
        self._gone = {container: known for container, known in self._gone.items() if now - known[0] < FORGOTTEN_SECONDS}
        self._gone[container] = now, self._connected.pop(container)
