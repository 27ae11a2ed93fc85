"""Memory beyond the charges and learned context sizes: never negative, no lasting error, learned once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.audit import overhead
from deviceplugin.audit.overhead import ContextCheckpoint, Overheads, Reading

KEY = ("GPU-a", (7, 100))
CONTEXT = 300


def reading(used: int, charged: int, expected: int = 0) -> Reading:
    return Reading(used, charged, charged, expected)


def test_surplus_counts_from_the_second_scan() -> None:
    overheads = Overheads()
    overheads.update({KEY: reading(1300, 1000)})
    assert overheads.bytes_of(KEY) == 0
    overheads.update({KEY: reading(1300, 1000)})
    assert overheads.bytes_of(KEY) == CONTEXT


def test_memory_allocated_between_reads_is_not_overhead() -> None:
    overheads = Overheads()
    for _ in range(3):  # the charge precedes the memory, so the second reading of the ledger includes it
        overheads.update({KEY: Reading(1800, 1000, 1500)})
    assert overheads.bytes_of(KEY) == CONTEXT


def test_memory_freed_between_reads_is_not_overhead() -> None:
    overheads = Overheads()
    for _ in range(3):  # the memory is freed before the charge, so the first reading includes it
        overheads.update({KEY: Reading(1800, 1500, 1000)})
    assert overheads.bytes_of(KEY) == CONTEXT


def test_ignores_a_single_wrong_reading() -> None:
    overheads = Overheads()
    for used in (1300, 1300, 9000, 1300):
        overheads.update({KEY: reading(used, 1000)})
        assert overheads.bytes_of(KEY) <= CONTEXT
    assert overheads.bytes_of(KEY) == CONTEXT


def test_unlisted_process_has_no_overhead() -> None:
    overheads = Overheads()
    overheads.update({KEY: reading(300, 0)})
    overheads.update({KEY: reading(300, 0)})
    overheads.update({})
    assert overheads.bytes_of(KEY) == 0


def test_silent_gpu_keeps_the_known_overhead() -> None:
    overheads = Overheads()
    overheads.update({KEY: reading(300, 0)})
    overheads.update({KEY: reading(300, 0)})
    overheads.update({}, silent={"GPU-a"})
    assert overheads.bytes_of(KEY) == CONTEXT
    overheads.update({}, silent={"GPU-b"})
    assert overheads.bytes_of(KEY) == 0


def test_context_size_is_learned_once_at_the_third_scan() -> None:
    overheads = Overheads()
    learned = []
    for used in (20, 300, 310, 320):  # its creation was still under way at the first scan
        overheads.update({KEY: reading(used, 0)})
        learned.append(dict(overheads.learned))
    assert learned == [{}, {}, {KEY: 300}, {}]


def test_learned_size_includes_the_expected_charge() -> None:
    overheads = Overheads()
    for _ in range(3):
        overheads.update({KEY: reading(1300, 1000 + 250, expected=250)})
    assert overheads.learned == {KEY: 300}
    assert overheads.bytes_of(KEY) == 50


def test_too_large_expectation_lowers_the_learned_size() -> None:
    overheads = Overheads()
    for _ in range(3):
        overheads.update({KEY: reading(1200, 1000 + 250, expected=250)})
    assert overheads.learned == {KEY: 200}
    assert overheads.bytes_of(KEY) == 0


def test_learns_nothing_while_the_expectation_changes() -> None:
    overheads = Overheads()
    for expected in (0, 0, 250):
        overheads.update({KEY: reading(300, 0, expected=expected)})
    assert overheads.learned == {}


sizes = st.integers(0, 1000)


@pytest.mark.slow
@given(st.lists(st.builds(Reading, sizes, sizes, sizes, sizes), min_size=1, max_size=8))
def test_overhead_is_at_most_the_lower_of_two_surpluses(readings: list[Reading]) -> None:
    overheads = Overheads()
    for before, now in zip([None, *readings], readings, strict=False):
        overheads.update({KEY: now})
        overhead = overheads.bytes_of(KEY)
        assert overhead >= 0
        if before is not None:
            assert overhead <= max(0, before.surplus_bytes)
            assert overhead <= max(0, now.surplus_bytes)
        assert all(context_bytes > 0 for context_bytes in overheads.learned.values())


@pytest.mark.slow
@given(sizes, sizes, st.integers(0, 500))
def test_charges_and_overhead_add_up_to_the_memory_in_use(charged: int, context: int, expected: int) -> None:
    """Nothing is counted twice, for any context size and any charge in advance."""
    overheads = Overheads()
    for _ in range(2):
        overheads.update({KEY: reading(charged + context, charged + expected, expected)})
    assert charged + expected + overheads.bytes_of(KEY) == charged + max(context, expected)


A100 = "NVIDIA A100, driver 550"


def test_uses_the_smallest_measured_context(tmp_path: Path) -> None:
    known = ContextCheckpoint(tmp_path)
    assert known.bytes_of(A100) == 0
    known.learn({A100: (500, 300)})
    known.learn({A100: (400,)})
    assert known.bytes_of(A100) == 300
    assert known.bytes_of("NVIDIA L4, driver 550") == 0


def test_setting_applies_until_a_context_was_measured(tmp_path: Path) -> None:
    known = ContextCheckpoint(tmp_path, until_learned_bytes=250)
    assert known.bytes_of(A100) == 250
    known.learn({A100: (300,)})
    assert known.bytes_of(A100) == 300


def test_next_agent_reads_the_learned_sizes(tmp_path: Path) -> None:
    ContextCheckpoint(tmp_path).learn({A100: (500, 300)})
    assert ContextCheckpoint(tmp_path).bytes_of(A100) == 300


def test_forgets_a_too_small_size_after_enough_others(tmp_path: Path) -> None:
    known = ContextCheckpoint(tmp_path)
    known.learn({A100: (1,)})
    for _ in range(overhead.MAX_REMEMBERED - 1):
        known.learn({A100: (300,)})
        assert known.bytes_of(A100) == 1
    known.learn({A100: (300,)})
    assert known.bytes_of(A100) == 300


@pytest.mark.parametrize("text", ["", "[]", '{"a": 3}', '{"a": ["x"]}', "\udcff"])
def test_invalid_context_file_counts_as_empty(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / overhead.CONTEXTS_NAME).write_text(text, errors="surrogateescape")
    assert ContextCheckpoint(tmp_path, until_learned_bytes=7).bytes_of("a") == 7
    assert "Starting without the previous agent's context sizes" in caplog.text


def test_write_error_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = ContextCheckpoint(tmp_path / "file")
    (tmp_path / "file").write_text("not a directory")
    known.learn({A100: (300,)})
    assert known.bytes_of(A100) == 300
    assert "Could not write the context sizes" in caplog.text
