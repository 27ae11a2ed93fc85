"""What part of the last seconds a share used a GPU."""

from __future__ import annotations

import pytest

from deviceplugin.arbiter.recent import Recent, Sight

SECOND = 1_000_000_000


def alternating(*spans: tuple[Sight, float], rounds: int = 1) -> tuple[Recent, int]:
    """After so many seconds of each, in turn."""
    recent, now_ns = Recent(0), 0
    for _ in range(rounds):
        for sight, seconds in spans:
            recent.see(sight, now_ns)
            now_ns += int(seconds * SECOND)
    return recent, now_ns


def test_nothing_is_said_before_something_is_known() -> None:
    assert Recent(0).ratio(SECOND // 10) is None
    assert Recent(0).ratio(2 * SECOND) == 0


@pytest.mark.parametrize("part", [0.1, 0.3, 0.9])
def test_taking_turns_it_is_the_part_of_them(part: float) -> None:
    for rounds in (100, 1000):  # of 30 ms: from 3 seconds on
        recent, now_ns = alternating((Sight.USES, 0.03 * part), (Sight.USES_NOT, 0.03 * (1 - part)), rounds=rounds)
        assert recent.ratio(now_ns) == pytest.approx(part, abs=0.01)


def test_the_past_fades() -> None:
    recent, now_ns = alternating((Sight.USES, 60), (Sight.USES_NOT, 10))
    assert recent.ratio(now_ns) == pytest.approx(0.37, abs=0.01)
    assert recent.ratio(now_ns + 60 * SECOND) == pytest.approx(0, abs=0.01)


def test_there_is_no_figure_while_nobody_asks_for_the_gpu_and_that_time_is_left_out_later() -> None:
    recent, now_ns = alternating((Sight.USES_NOT, 5), (Sight.UNKNOWN, 5))
    assert recent.ratio(now_ns) is None
    recent.see(Sight.USES_NOT, now_ns)
    assert recent.ratio(now_ns) == 0
    recent.see(Sight.UNKNOWN, now_ns)
    recent.see(Sight.USES, now_ns + 60 * SECOND)
    assert recent.ratio(now_ns + 60 * SECOND) is None
    assert recent.ratio(now_ns + 62 * SECOND) == pytest.approx(1, abs=0.02)
