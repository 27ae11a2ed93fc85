"""The time of the last loss of ledger records survives restarts, and is not later than the loss."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from deviceplugin.arbiter import share_ledger, share_ledgers
from deviceplugin.host import kernel_process

NEVER = 0


def lost_ticks(directory: Path) -> int:
    """Return the time that an agent knows which starts now."""
    started = share_ledgers.ShareLedgers(directory)
    started.recover()
    return started.lost_ticks


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of the records, which exists."""
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def own_ticks() -> int:
    own = kernel_process.with_start(os.getpid())
    assert own is not None
    return own[1]


def test_nothing_is_lost_while_every_record_is_readable(directory: Path) -> None:
    assert lost_ticks(directory) == NEVER


def test_without_the_directory_all_earlier_records_are_lost(directory: Path, own_ticks: int) -> None:
    directory.rmdir()
    assert lost_ticks(directory) == own_ticks
    assert lost_ticks(directory) == own_ticks


def test_an_unreadable_record_counts_as_lost(directory: Path, own_ticks: int) -> None:
    (directory / "uid-0.json").write_text("{")
    assert lost_ticks(directory) == own_ticks
    assert share_ledger.record_paths(directory) == []


def test_the_next_agent_keeps_the_time_of_the_loss(directory: Path) -> None:
    share_ledger.write_loss(directory, kernel_process.boot_id(), 7)
    assert lost_ticks(directory) == 7
    assert lost_ticks(directory) == 7


def test_a_reboot_ends_the_loss(directory: Path) -> None:
    share_ledger.write_loss(directory, "another boot", 7)
    assert lost_ticks(directory) == NEVER


@pytest.mark.parametrize("text", ["", "{", "[]", "3", json.dumps({"boot_id": kernel_process.boot_id()})])
def test_an_unreadable_file_counts_as_a_loss(directory: Path, own_ticks: int, text: str) -> None:
    share_ledger.loss_path(directory).write_text(text)
    assert lost_ticks(directory) == own_ticks
