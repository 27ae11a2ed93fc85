"""Runs every kept input, seeds and fixed faults, through its target; and checks that breaking a law is detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import native, running, table

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", sorted(table.TARGETS))
def test_kept_inputs_break_no_law(name: str) -> None:
    ended = running.replay(name, *table.cases(name))
    assert ended.returncode == 0, running.tail(ended.stdout + ended.stderr)


def test_every_folder_of_cases_belongs_to_a_target() -> None:
    assert {path.name for path in table.CASES.iterdir()} == set(table.TARGETS)


@pytest.mark.parametrize("name", sorted(table.PLANTED))
def test_replaying_finds_the_planted_fault(name: str, tmp_path: Path) -> None:
    (tmp_path / "fine").write_bytes(b"?")
    (tmp_path / "wrong").write_bytes(b"!!")
    assert running.replay(name, tmp_path / "fine").returncode == 0
    ended = running.replay(name, tmp_path / "fine", tmp_path / "wrong")
    assert ended.returncode != 0
    assert running.place(ended.stderr)


def test_replaying_without_clang_finds_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "missing", lambda: "clang is missing")
    test_replaying_finds_the_planted_fault("planted_c", tmp_path)
