from hypothesis import given
from hypothesis import strategies as st

from gpushare.cluster import event_series

POD = (("kind", "Pod"), ("namespace", "default"), ("name", "trainer"))


def event(note: str = "no GPU has 8Gi free", *, name: str = "trainer") -> event_series.Event:
    return event_series.Event((*POD[:2], ("name", name)), "Gated", note)


def test_the_first_time_is_told_at_once() -> None:
    told = event_series.EventDeduplicator().happened(event(), now=0.0)
    assert told is not None
    assert told.count == 1
    assert told.name.startswith("trainer.")


def test_a_pod_that_waits_for_a_day_with_one_reason_costs_a_call_every_ten_minutes() -> None:
    told = event_series.EventDeduplicator()
    calls = sum(told.happened(event(), now=float(second)) is not None for second in range(24 * 3600))
    assert calls == 24 * 6


def test_the_count_is_of_all_that_happened_and_not_of_what_was_told() -> None:
    told = event_series.EventDeduplicator()
    for second in range(600):
        told.happened(event(), now=float(second))
    written = told.happened(event(), now=600.0)
    assert written is not None
    assert written.count == 601


def test_after_long_silence_the_same_sentence_is_news_again() -> None:
    told = event_series.EventDeduplicator()
    first = told.happened(event(), now=0.0)
    again = told.happened(event(), now=event_series.FORGET_SECONDS)
    assert first is not None
    assert again is not None
    assert again.count == 1
    assert again.name != first.name


def test_a_sentence_that_changes_every_second_does_not_become_a_stream() -> None:
    told = event_series.EventDeduplicator()
    calls = sum(told.happened(event(f"{second} bytes free"), now=float(second)) is not None for second in range(3600))
    assert calls == event_series.NEWS_AT_ONCE + 3600 // event_series.NEWS_SECONDS - 1
    assert told.withheld == 3600 - calls


def test_what_one_object_says_does_not_silence_another() -> None:
    told = event_series.EventDeduplicator()
    for second in range(100):
        told.happened(event(f"{second} bytes free"), now=float(second))
    assert told.happened(event(name="other"), now=100.0) is not None


def test_what_could_not_be_told_is_news_the_next_time() -> None:
    told = event_series.EventDeduplicator()
    assert told.happened(event(), now=0.0) is not None
    told.forget(event())
    assert told.happened(event(), now=1.0) is not None


def test_long_names_leave_room_for_what_makes_them_unique() -> None:
    told = event_series.EventDeduplicator().happened(event(name="n" * 253), now=0.0)
    assert told is not None
    assert len(told.name) == event_series.NAME_CHARACTERS


@given(names=st.lists(st.text("abc", min_size=1, max_size=2), max_size=60))
def test_no_more_series_are_kept_than_allowed(names: list[str]) -> None:
    told = event_series.EventDeduplicator(most=4)
    for now, name in enumerate(names):
        told.happened(event(name=name), now=float(now))
    assert len(told) <= 4
