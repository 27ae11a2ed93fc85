"""The plan of a run on a GPU: it never promises more than the time that is left, and never measures too briefly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu import plan
from bench.gpu.plan import Cost

COSTS = st.dictionaries(st.sampled_from("abcdefgh"), st.builds(Cost, st.floats(0, 100), st.integers(0, 20)), min_size=1)


@given(COSTS, st.floats(0, 600), st.floats(0.2, 5), st.none() | st.floats(0.1, 10))
def test_what_is_planned_fits_and_no_window_is_shorter_than_the_least(
    costs: dict[str, Cost], left: float, pace: float, fixed: float | None
) -> None:
    made = plan.make(list(costs), costs, left, pace=pace, fixed_window_seconds=fixed)
    assert sum(costs[name].seconds(made.window_seconds, pace) for name in made.fits) <= left + 1e-6
    assert made.window_seconds >= (fixed or plan.MIN_SECONDS)
    assert [*made.fits, *made.left_out] == sorted(
        costs, key=lambda name: (name in made.left_out, list(costs).index(name))
    )
    # None is left out that would still have fitted behind the others.
    least = fixed or plan.MIN_SECONDS
    planned = sum(costs[name].seconds(least, pace) for name in made.fits)
    assert all(planned + costs[name].seconds(least, pace) > left for name in made.left_out)


def test_a_small_case_takes_the_place_of_a_large_one_that_does_not_fit() -> None:
    costs = {"large": Cost(100), "small": Cost(5, 1)}
    assert plan.make(["large", "small"], costs, 60).fits == ("small",)


def test_time_that_is_left_over_makes_windows_longer_up_to_a_limit() -> None:
    costs = {"one": Cost(0, 10)}
    around = 10 * plan.AROUND_SECONDS
    assert plan.make(["one"], costs, around + 10 * 4.0).window_seconds == pytest.approx(4.0)
    assert plan.make(["one"], costs, around + 10 * 60.0).window_seconds == plan.MAX_SECONDS


def test_the_pace_is_learned_from_what_cases_took() -> None:
    cost = Cost(100, 4)
    assert plan.pace([]) == 1.0
    assert 1.5 < plan.pace([(cost, 3.0, cost.seconds(3.0, 2.0))]) < 2.0
    assert 0.5 < plan.pace([(Cost(10), 3.0, 0.0)]) < 1.0, "one odd case does not decide"
