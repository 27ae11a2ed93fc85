"""Limits per container: message rates, log lines, and how long they are remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter import client_connection
from deviceplugin.arbiter.client_connection import ConnectionLimits, RateLimiter
from deviceplugin.host.kernel_process import Container

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
    first = made.connect(ONE)
    assert made.connect(ONE) is first
    assert made.connect(OTHER) is not first
    assert (made.connections(ONE), made.connections(OTHER)) == (2, 1)
    made.disconnect(ONE)
    made.disconnect(ONE)
    assert (made.connections(ONE), made.connections(OTHER)) == (0, 1)


def test_a_container_that_returns_soon_keeps_its_limits_and_later_gets_new_ones(clock: Clock) -> None:
    made = ConnectionLimits(clock)
    first = made.connect(ONE)
    made.disconnect(ONE)
    clock.now += client_connection.FORGOTTEN_SECONDS - 1
    assert made.connect(ONE) is first
    made.disconnect(ONE)
    clock.now += client_connection.FORGOTTEN_SECONDS + 1
    made.connect(OTHER)
    made.disconnect(OTHER)
    assert made.connect(ONE) is not first


def test_a_container_cannot_fill_the_log_and_suppressed_lines_are_counted(clock: Clock) -> None:
    limits = ConnectionLimits(clock).connect(ONE)
    written = [limits.suppressed_lines(clock.now) for _ in range(10_000)]
    logged = [left_out for left_out in written if left_out is not None]
    assert len(logged) == client_connection.LINE_BURST + 1
    clock.now += 1.1
    assert limits.suppressed_lines(clock.now) == 10_000 - len(logged)
    assert limits.suppressed_lines(clock.now) is None
    clock.now += client_connection.LINE_BURST
    assert limits.suppressed_lines(clock.now) == 1
    assert all(limits.suppressed_lines(clock.now) == 0 for _ in range(500))


def test_a_burst_passes_and_then_each_event_waits_longer() -> None:
    pace = RateLimiter(per_second=10, burst=3)
    assert [round(pace.take(100.0), 6) for _ in range(6)] == [0, 0, 0, 0.1, 0.2, 0.3]


def test_unused_rate_accrues_up_to_the_burst() -> None:
    pace = RateLimiter(per_second=10, burst=2)
    pace.take(0.0)
    pace.take(0.0)
    assert [round(pace.take(100.0), 6) for _ in range(3)] == [0, 0, 0.1]


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=200), st.integers(1, 20), st.floats(1, 100))
def test_events_that_wait_as_told_never_exceed_the_rate(gaps: list[float], burst: int, per_second: float) -> None:
    pace = RateLimiter(per_second=per_second, burst=burst)
    now, times = 0.0, []
    for gap in gaps:
        now += gap
        now += pace.take(now)
        times.append(now)
    for begin in range(len(times)):
        count = len(times) - begin
        assert count <= burst + 1 + (times[-1] - times[begin]) * per_second + 1e-6
