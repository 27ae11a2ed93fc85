"""The fraction of the last seconds in which a share used a GPU."""

from __future__ import annotations

import pytest

from deviceplugin.arbiter.scheduling.gpu_share import Activity, RecentUse

SECOND = 1_000_000_000


def alternating(*spans: tuple[Activity, float], rounds: int = 1) -> tuple[RecentUse, int]:
    """Repeat these activities for these seconds. Return the result and the time."""
    recent, now_ns = RecentUse(0), 0
    for _ in range(rounds):
        for sight, seconds in spans:
            recent.record(sight, now_ns)
            now_ns += int(seconds * SECOND)
    return recent, now_ns


def test_there_is_no_figure_before_enough_time_is_known() -> None:
    assert RecentUse(0).ratio(SECOND // 10) is None
    assert RecentUse(0).ratio(2 * SECOND) == 0


@pytest.mark.parametrize("part", [0.1, 0.3, 0.9])
def test_alternating_use_gives_its_fraction(part: float) -> None:
    for rounds in (100, 1000):  # rounds of 30 ms: from 3 seconds on
        recent, now_ns = alternating((Activity.BUSY, 0.03 * part), (Activity.IDLE, 0.03 * (1 - part)), rounds=rounds)
        assert recent.ratio(now_ns) == pytest.approx(part, abs=0.01)


def test_the_past_fades() -> None:
    recent, now_ns = alternating((Activity.BUSY, 60), (Activity.IDLE, 10))
    assert recent.ratio(now_ns) == pytest.approx(0.37, abs=0.01)
    assert recent.ratio(now_ns + 60 * SECOND) == pytest.approx(0, abs=0.01)


def test_uncontended_time_has_no_figure_and_is_left_out_later() -> None:
    recent, now_ns = alternating((Activity.IDLE, 5), (Activity.UNKNOWN, 5))
    assert recent.ratio(now_ns) is None
    recent.record(Activity.IDLE, now_ns)
    assert recent.ratio(now_ns) == 0
    recent.record(Activity.UNKNOWN, now_ns)
    recent.record(Activity.BUSY, now_ns + 60 * SECOND)
    assert recent.ratio(now_ns + 60 * SECOND) is None
    assert recent.ratio(now_ns + 62 * SECOND) == pytest.approx(1, abs=0.02)
