"""Files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from deviceplugin.disk import whole_file


def test_a_file_is_made_with_the_directories_above_it_and_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "new" / "file"
    whole_file.write(path, "text", mode=0o640, lasting=True)
    assert path.read_text() == "text"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_who_has_the_old_one_open_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole_file.write(path, b"old")
    with path.open("rb") as held:
        whole_file.write(path, b"new")
        assert held.read() == b"old"
    assert path.read_bytes() == b"new"


def test_what_is_there_already_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert whole_file.keep(path, "same")
    inode = path.stat().st_ino
    assert not whole_file.keep(path, b"same")
    assert path.stat().st_ino == inode
    assert whole_file.keep(path, "other")


def test_one_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    whole_file.write(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        whole_file.write(path, "new", lasting=True)
    assert path.read_text() == "old"
