"""The time of the last loss of ledger records survives restarts, and is not later than the loss."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from deviceplugin.arbiter import share_ledger, share_ledgers
from deviceplugin.arbiter.tenant import UNLIMITED_BYTES, Grant, Tenant
from deviceplugin.host import kernel_process
from gpushare.allocation import Isolation

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


async def test_a_share_without_isolation_has_no_memory_limit_after_a_process_has_joined_again(directory: Path) -> None:
    """Records lack the isolation, so a ledger that was taken over has the share's memory as its limit."""
    grants = (Grant("GPU-00000000-0000-0000-0000-00000000000a", 1 << 30, 50, 100),)
    recorded = Tenant("uid", "ml", "trainer", ("main",), 0, grants)
    own = kernel_process.find(*(kernel_process.with_start(os.getpid()) or (0, 0)))
    assert own is not None
    started = share_ledgers.ShareLedgers(directory)
    try:
        share, _ = started.join(recorded, own)
        assert share.limits.read()[0].memory_bytes == 1 << 30
        started.join(dataclasses.replace(recorded, isolation=Isolation.NONE), own)
        assert share.limits.read()[0].memory_bytes == UNLIMITED_BYTES
    finally:
        started.close()
        os.close(own.pidfd)
