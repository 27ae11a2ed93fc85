"""Shares that use more GPU time than allowed are reported soon, others never, however inaccurate the driver is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.audit import excess
from deviceplugin.audit.excess import FADING_SECONDS, DriverUsage, Excess, Overuse, Place

PLACE: Place = ("GPU-a", "trainer-0")
LATE_SECONDS = 2.0  # delay of the driver's figures
ERROR = 0.1  # of the driver's readings
STEP = 0.1


def look(watch: Excess, now: float, used: float | None, held: float | None = None, turn: float = 0.0) -> Overuse | None:
    watch.update(
        now,
        used={PLACE: used} if used is not None else {},
        held={PLACE: held} if held is not None else {},
        turns={PLACE: turn},
    )
    return watch.overuse.get(PLACE)


def reported_after(used: float, let: float, *, pause: float = 2.0, until: float = 100.0) -> float | None:
    """Return after how many seconds a share that constantly uses so much is reported."""
    watch, now = Excess(), 50.0
    look(watch, now, used, 0.0)
    while now < 50 + until:
        now += pause
        if look(watch, now, used, let * (now - 50)) is not None:
            return now - 50
    return None


@pytest.mark.parametrize(("used", "let", "at_most"), [(1.0, 0.1, 6), (0.55, 0.1, 12), (1.0, 0.5, 10), (0.5, 0.0, 10)])
def test_reports_a_share_that_bypasses_the_gate_within_seconds(used: float, let: float, at_most: float) -> None:
    seconds = reported_after(used, let)
    assert seconds is not None
    assert seconds <= at_most


@given(st.floats(0.2, 1.0), st.floats(0, 1), st.floats(0.5, 5))
def test_use_beyond_the_tolerance_adds_up(beyond: float, let: float, pause: float) -> None:
    used = min(1.0, let + beyond)
    if used - let - excess.TOLERATED < 0.01:
        return
    seconds = reported_after(used, let, pause=pause, until=400)
    assert seconds is not None
    assert seconds <= excess.REPORTED_SECONDS / (used - let - excess.TOLERATED) + 2 * pause


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=20),
    st.lists(st.integers(2, 50), min_size=1, max_size=30),
    st.floats(0, LATE_SECONDS),
    st.lists(st.floats(-ERROR, ERROR), min_size=1, max_size=30),
)
def test_never_reports_a_share_within_its_allowance(
    turns: list[tuple[int, bool]], pauses: list[int], late: float, errors: list[float]
) -> None:
    """The share has the GPU in turns of any length and uses them fully; the driver's figures are late."""
    has = list(itertools.chain.from_iterable([on] * length for length, on in turns))
    has = (has * (1 + 1000 // max(1, len(has))))[:1000] if has else [False] * 1000
    held = [0.0, *itertools.accumulate(STEP * on for on in has)]

    def at(seconds: float) -> float:
        return held[max(0, min(len(held) - 1, round(seconds / STEP)))]

    watch, now = Excess(), 0.0
    look(watch, now, 0.0, at(now))
    for pause, error in zip(itertools.cycle(pauses), itertools.cycle(errors), strict=False):
        before, now = now, now + pause * STEP
        if now > STEP * len(has):
            break
        seen = (at(now - late) - at(before - late)) / (now - before)
        assert look(watch, now, min(1.0, max(0.0, seen + error)), at(now)) is None


def test_time_allowed_without_an_arbiter_is_not_excess() -> None:
    watch = Excess()
    assert all(look(watch, second, 0.5, None, turn=0.5) is None for second in range(0, 60, 2))
    assert [look(watch, second, 1.0, None, turn=0.5) is None for second in range(60, 72, 2)] == [True] * 4 + [False] * 2


def test_reports_overuse_with_figures_until_it_is_compensated() -> None:
    watch = Excess()
    look(watch, 0, 0.0, 0.0)
    for second in range(2, 22, 2):
        beyond = look(watch, second, 0.95, 0.1 * second)
    assert beyond == pytest.approx(Overuse(0.95, 0.1))
    assert beyond is not None
    assert beyond.sentence == "the driver ran its kernels for 95% of the time, but the arbiter allowed 10%"
    ended = next(second for second in range(22, 100, 2) if look(watch, second, 0.0, 2.0) is None)
    assert 40 < ended < 60


def test_reports_nothing_about_new_or_unmeasured_shares() -> None:
    watch = Excess()
    for second in range(0, 60, 2):
        assert look(watch, second, 1.0 if second % 4 else None, 0.0) is None


def test_short_absence_does_not_reset_the_excess() -> None:
    """Its processes run for eight seconds, are gone at one update, and are back at the next."""
    watch = Excess()
    reports = [look(watch, second, None if second % 10 == 8 else 0.6, 0.0) for second in range(0, 100, 2)]
    assert any(reports)
    gone = [look(watch, second, None) for second in range(100, 140, 2)]
    assert gone[-1] is None, "and it is dropped in the end"


def test_restarted_accounts_are_not_excess() -> None:
    watch = Excess()
    for second in range(0, 20, 2):
        assert look(watch, second, 1.0, float(second)) is None
    for second in range(20, 40, 2):  # its processes left the GPU for a moment
        assert look(watch, second, 1.0, float(second - 19)) is None


PARTS = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def usage_after(*parts: float | None) -> float | None:
    usage, now = DriverUsage(), 1000.0
    for part in parts:
        now += 2.0
        usage.update(now, {} if part is None else {PLACE: part})
    return usage.recent.get(PLACE)


def test_busy_share_uses_all_of_its_gpu_from_the_first_audit() -> None:
    assert usage_after(1.0) == pytest.approx(1.0)
    assert usage_after(*[1.0] * 30) == pytest.approx(1.0)


def test_usage_of_a_stopped_share_fades_within_seconds() -> None:
    stopped = usage_after(*[1.0] * 30, *[0.0] * round(FADING_SECONDS / 2))
    assert stopped == pytest.approx(1 / 2.718, rel=0.05)


def test_unmeasured_share_has_no_figure_and_starts_again() -> None:
    assert usage_after(1.0, None) is None
    assert usage_after(1.0, None, 0.25) == pytest.approx(0.25)


@given(PARTS)
def test_usage_lies_between_the_lowest_and_highest_measurement(parts: list[float]) -> None:
    figure = usage_after(*parts)
    assert figure is not None
    assert min(parts) - 1e-9 <= figure <= max(parts) + 1e-9
