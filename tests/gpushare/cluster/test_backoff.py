from hypothesis import given
from hypothesis import strategies as st

from gpushare.cluster import retrying


@given(failures=st.integers(1, 10_000), drawn=st.floats(0, 1))
def test_a_pause_is_positive_and_at_most_the_maximum(failures: int, drawn: float) -> None:
    pause = retrying.pause_seconds(failures, first_seconds=0.2, most_seconds=30.0, draw=lambda: drawn)
    assert 0.02 <= pause <= 30.0


def test_pauses_double_up_to_the_maximum() -> None:
    pauses = [
        retrying.pause_seconds(count, first_seconds=1.0, most_seconds=10.0, draw=lambda: 1.0) for count in range(1, 7)
    ]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_pauses_are_jittered() -> None:
    pauses = {retrying.pause_seconds(3, first_seconds=1.0, most_seconds=10.0) for _ in range(20)}
    assert len(pauses) > 10
