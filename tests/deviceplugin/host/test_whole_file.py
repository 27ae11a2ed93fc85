"""Atomic file writes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from deviceplugin.host import records


def test_write_creates_parent_directories_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "new" / "file"
    records.write_file(path, "text", mode=0o640, lasting=True)
    assert path.read_text() == "text"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_open_old_file_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "file"
    records.write_file(path, b"old")
    with path.open("rb") as held:
        records.write_file(path, b"new")
        assert held.read() == b"old"
    assert path.read_bytes() == b"new"


def test_equal_content_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert records.write_if_changed(path, "same")
    inode = path.stat().st_ino
    assert not records.write_if_changed(path, b"same")
    assert path.stat().st_ino == inode
    assert records.write_if_changed(path, "other")


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    records.write_file(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write_file(path, "new", lasting=True)
    assert path.read_text() == "old"


def test_lasting_write_syncs_file_and_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    fsync, synced = os.fsync, []

    def seen(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", seen)
    records.write_file(path, "text")
    assert synced == []
    path.unlink()
    records.write_file(path, "text", lasting=True)
    assert synced == [(False, False), (True, True)]  # the content before the rename, and the directory after it


@pytest.mark.parametrize(("number", "raises"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_directory_without_sync_support_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raises: bool
) -> None:
    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OSError, match="Input/output") if raises else contextlib.nullcontext():
        records.write_file(tmp_path / "file", "text", lasting=True)
    assert (tmp_path / "file").read_text() == "text"
