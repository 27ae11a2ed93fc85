"""How much one container may say, and for how long that is remembered."""

from __future__ import annotations

import pytest

from deviceplugin.arbiter import connection_limits
from deviceplugin.arbiter.connection_limits import ConnectionLimits
from deviceplugin.host.identity import Container

ONE, OTHER = Container("uid", "one"), Container("uid", "other")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_connections_are_counted_by_container(clock: Clock) -> None:
    made = ConnectionLimits(clock)
    first = made.came(ONE)
    assert made.came(ONE) is first
    assert made.came(OTHER) is not first
    assert (made.connections_of(ONE), made.connections_of(OTHER)) == (2, 1)
    made.left(ONE)
    made.left(ONE)
    assert (made.connections_of(ONE), made.connections_of(OTHER)) == (0, 1)


def test_who_comes_back_soon_is_the_same_and_who_comes_late_is_new(clock: Clock) -> None:
    made = ConnectionLimits(clock)
    first = made.came(ONE)
    made.left(ONE)
    clock.now += connection_limits.FORGOTTEN_SECONDS - 1
    assert made.came(ONE) is first
    made.left(ONE)
    clock.now += connection_limits.FORGOTTEN_SECONDS + 1
    made.came(OTHER)
    made.left(OTHER)
    assert made.came(ONE) is not first


def test_a_container_fills_no_log_and_what_was_left_out_is_counted(clock: Clock) -> None:
    guest = ConnectionLimits(clock).came(ONE)
    written = [guest.line(clock.now) for _ in range(10_000)]
    logged = [left_out for left_out in written if left_out is not None]
    assert len(logged) == connection_limits.LINE_BURST + 1
    clock.now += 1.1
    assert guest.line(clock.now) == 10_000 - len(logged)
    assert guest.line(clock.now) is None
    clock.now += connection_limits.LINE_BURST
    assert guest.line(clock.now) == 1
    assert all(guest.line(clock.now) == 0 for _ in range(500))
