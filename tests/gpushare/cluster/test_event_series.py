import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cluster import event_series

POD = (("kind", "Pod"), ("namespace", "default"), ("name", "trainer"))


def event(note: str = "no GPU has 8Gi free", *, name: str = "trainer") -> event_series.Event:
    return event_series.Event((*POD[:2], ("name", name)), "Gated", note)


def test_the_first_time_is_told_at_once() -> None:
    series = event_series.EventDeduplicator().happened(event(), now=0.0)
    assert series is not None
    assert series.count == 1
    assert series.name.startswith("trainer.")


@pytest.mark.slow
def test_repeated_reason_costs_one_call_every_ten_minutes() -> None:
    dedup = event_series.EventDeduplicator()
    calls = sum(dedup.happened(event(), now=float(second)) is not None for second in range(24 * 3600))
    assert calls == 24 * 6


def test_the_count_is_of_all_that_happened_and_not_of_what_was_told() -> None:
    dedup = event_series.EventDeduplicator()
    for second in range(600):
        dedup.happened(event(), now=float(second))
    written = dedup.happened(event(), now=600.0)
    assert written is not None
    assert written.count == 601


def test_after_long_silence_the_same_sentence_is_news_again() -> None:
    dedup = event_series.EventDeduplicator()
    first = dedup.happened(event(), now=0.0)
    again = dedup.happened(event(), now=event_series.FORGET_SECONDS)
    assert first is not None
    assert again is not None
    assert again.count == 1
    assert again.name != first.name


def test_a_sentence_that_changes_every_second_does_not_become_a_stream() -> None:
    dedup = event_series.EventDeduplicator()
    calls = sum(dedup.happened(event(f"{second} bytes free"), now=float(second)) is not None for second in range(3600))
    assert calls == event_series.NEWS_AT_ONCE + 3600 // event_series.NEWS_SECONDS - 1
    assert dedup.withheld == 3600 - calls


def test_what_one_object_says_does_not_silence_another() -> None:
    dedup = event_series.EventDeduplicator()
    for second in range(100):
        dedup.happened(event(f"{second} bytes free"), now=float(second))
    assert dedup.happened(event(name="other"), now=100.0) is not None


def test_what_could_not_be_told_is_news_the_next_time() -> None:
    dedup = event_series.EventDeduplicator()
    assert dedup.happened(event(), now=0.0) is not None
    dedup.forget(event())
    assert dedup.happened(event(), now=1.0) is not None


def test_long_names_leave_room_for_what_makes_them_unique() -> None:
    series = event_series.EventDeduplicator().happened(event(name="n" * 253), now=0.0)
    assert series is not None
    assert len(series.name) == event_series.NAME_CHARACTERS


@given(names=st.lists(st.text("abc", min_size=1, max_size=2), max_size=60))
def test_no_more_series_are_kept_than_allowed(names: list[str]) -> None:
    dedup = event_series.EventDeduplicator(most=4)
    for now, name in enumerate(names):
        dedup.happened(event(name=name), now=float(now))
    assert len(dedup) <= 4
