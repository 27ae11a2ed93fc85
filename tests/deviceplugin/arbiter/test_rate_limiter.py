"""How often is too often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.arbiter.rate_limiter import RateLimiter


def test_a_burst_is_free_and_then_each_waits_longer() -> None:
    pace = RateLimiter(per_second=10, burst=3)
    assert [round(pace.take(100.0), 6) for _ in range(6)] == [0, 0, 0, 0.1, 0.2, 0.3]


def test_what_was_not_used_is_there_again_but_no_more_than_the_burst() -> None:
    pace = RateLimiter(per_second=10, burst=2)
    pace.take(0.0)
    pace.take(0.0)
    assert [round(pace.take(100.0), 6) for _ in range(3)] == [0, 0, 0.1]


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=200), st.integers(1, 20), st.floats(1, 100))
def test_whoever_waits_as_told_never_exceeds_the_rate(gaps: list[float], burst: int, per_second: float) -> None:
    pace = RateLimiter(per_second=per_second, burst=burst)
    now, times = 0.0, []
    for gap in gaps:
        now += gap
        now += pace.take(now)
        times.append(now)
    for begin in range(len(times)):
        count = len(times) - begin
        assert count <= burst + 1 + (times[-1] - times[begin]) * per_second + 1e-6
