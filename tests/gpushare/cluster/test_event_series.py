import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cluster import events

POD = (("kind", "Pod"), ("namespace", "default"), ("name", "trainer"))


def event(note: str = "no GPU has 8Gi free", *, name: str = "trainer") -> events.Event:
    return events.Event((*POD[:2], ("name", name)), "Gated", note)


def test_the_first_event_is_written_at_once() -> None:
    series = events.EventDeduplicator().happened(event(), now=0.0)
    assert series is not None
    assert series.count == 1
    assert series.name.startswith("trainer.")


@pytest.mark.slow
def test_a_repeated_event_costs_one_call_in_ten_minutes() -> None:
    dedup = events.EventDeduplicator()
    calls = sum(dedup.happened(event(), now=float(second)) is not None for second in range(24 * 3600))
    assert calls == 24 * 6


def test_the_series_count_includes_events_that_were_not_written() -> None:
    dedup = events.EventDeduplicator()
    for second in range(600):
        dedup.happened(event(), now=float(second))
    written = dedup.happened(event(), now=600.0)
    assert written is not None
    assert written.count == 601


def test_an_event_after_a_long_silence_starts_a_new_series() -> None:
    dedup = events.EventDeduplicator()
    first = dedup.happened(event(), now=0.0)
    again = dedup.happened(event(), now=events.FORGET_SECONDS)
    assert first is not None
    assert again is not None
    assert again.count == 1
    assert again.name != first.name


def test_events_with_changing_notes_are_rate_limited() -> None:
    dedup = events.EventDeduplicator()
    calls = sum(dedup.happened(event(f"{second} bytes free"), now=float(second)) is not None for second in range(3600))
    assert calls == events.BURST + 3600 // events.TOKEN_SECONDS - 1
    assert dedup.withheld == 3600 - calls


def test_events_of_one_object_do_not_suppress_those_of_another() -> None:
    dedup = events.EventDeduplicator()
    for second in range(100):
        dedup.happened(event(f"{second} bytes free"), now=float(second))
    assert dedup.happened(event(name="other"), now=100.0) is not None


def test_a_forgotten_event_is_written_at_once_the_next_time() -> None:
    dedup = events.EventDeduplicator()
    assert dedup.happened(event(), now=0.0) is not None
    dedup.forget(event())
    assert dedup.happened(event(), now=1.0) is not None


def test_long_event_names_keep_their_unique_suffix() -> None:
    series = events.EventDeduplicator().happened(event(name="n" * 253), now=0.0)
    assert series is not None
    assert len(series.name) == events.NAME_CHARACTERS


@given(names=st.lists(st.text("abc", min_size=1, max_size=2), max_size=60))
def test_the_number_of_series_is_bounded(names: list[str]) -> None:
    dedup = events.EventDeduplicator(most=4)
    for now, name in enumerate(names):
        dedup.happened(event(name=name), now=float(now))
    assert len(dedup) <= 4
