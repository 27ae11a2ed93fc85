"""What contexts take, by model: the least of the last, kept for the next agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from deviceplugin.audit import overhead
from deviceplugin.audit.overhead import ContextCheckpoint

A100 = "NVIDIA A100, driver 550"


def test_the_least_of_those_measured_is_gone_by(tmp_path: Path) -> None:
    known = ContextCheckpoint(tmp_path)
    assert known.bytes_of(A100) == 0
    known.learn({A100: (500, 300)})
    known.learn({A100: (400,)})
    assert known.bytes_of(A100) == 300
    assert known.bytes_of("NVIDIA L4, driver 550") == 0


def test_a_setting_counts_until_something_was_measured(tmp_path: Path) -> None:
    known = ContextCheckpoint(tmp_path, until_learned_bytes=250)
    assert known.bytes_of(A100) == 250
    known.learn({A100: (300,)})
    assert known.bytes_of(A100) == 300


def test_the_next_agent_knows_what_this_one_learned(tmp_path: Path) -> None:
    ContextCheckpoint(tmp_path).learn({A100: (500, 300)})
    assert ContextCheckpoint(tmp_path).bytes_of(A100) == 300


def test_a_figure_that_was_too_small_is_forgotten_after_enough_others(tmp_path: Path) -> None:
    known = ContextCheckpoint(tmp_path)
    known.learn({A100: (1,)})
    for _ in range(overhead.MAX_REMEMBERED - 1):
        known.learn({A100: (300,)})
        assert known.bytes_of(A100) == 1
    known.learn({A100: (300,)})
    assert known.bytes_of(A100) == 300


@pytest.mark.parametrize("text", ["", "[]", '{"a": 3}', '{"a": ["x"]}', "\udcff"])
def test_a_file_that_makes_no_sense_is_no_reason_not_to_start(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / overhead.CONTEXTS_NAME).write_text(text, errors="surrogateescape")
    assert ContextCheckpoint(tmp_path, until_learned_bytes=7).bytes_of("a") == 7
    assert "Starting without what the last agent knew of contexts" in caplog.text


def test_a_disk_that_takes_nothing_is_told_and_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = ContextCheckpoint(tmp_path / "file")
    (tmp_path / "file").write_text("not a directory")
    known.learn({A100: (300,)})
    assert known.bytes_of(A100) == 300
    assert "Could not keep what contexts take" in caplog.text
