"""The time that a share used by the driver: a mean over about ten seconds, and nothing where it does not measure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.audit.excess import FADING_SECONDS, DriverUsage

PLACE = ("GPU-a", "share")
PARTS = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def after(*parts: float | None) -> float | None:
    usage, now = DriverUsage(), 1000.0
    for part in parts:
        now += 2.0
        usage.update(now, {} if part is None else {PLACE: part})
    return usage.recent.get(PLACE)


def test_a_share_that_always_computes_uses_all_of_its_gpu_from_the_first_look() -> None:
    assert after(1.0) == pytest.approx(1.0)
    assert after(*[1.0] * 30) == pytest.approx(1.0)


def test_a_share_that_stops_fades_within_seconds() -> None:
    stopped = after(*[1.0] * 30, *[0.0] * round(FADING_SECONDS / 2))
    assert stopped == pytest.approx(1 / 2.718, rel=0.05)


def test_a_share_that_is_not_measured_has_no_figure_and_starts_again() -> None:
    assert after(1.0, None) is None
    assert after(1.0, None, 0.25) == pytest.approx(0.25)


@given(PARTS)
def test_law_the_figure_lies_between_the_least_and_the_most_that_was_measured(parts: list[float]) -> None:
    figure = after(*parts)
    assert figure is not None
    assert min(parts) - 1e-9 <= figure <= max(parts) + 1e-9
