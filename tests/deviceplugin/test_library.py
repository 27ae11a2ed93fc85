"""The library on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from deviceplugin import library


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "libgpushare.so"
    path.write_bytes(b"\x7fELF one")
    return path


def test_the_library_lies_under_a_name_of_its_content(source: Path, tmp_path: Path) -> None:
    installed = library.install(source, root=tmp_path / "root")
    assert installed.library.read_bytes() == source.read_bytes()
    assert installed.library.name.startswith("libgpushare-")
    assert installed.library.stat().st_mode & 0o777 == 0o755
    assert installed.preload_file.read_text() == "/usr/lib/gpushare/libgpushare.so\n"
    assert installed.preload_file.stat().st_mode & 0o777 == 0o644


def test_installing_again_changes_nothing(source: Path, tmp_path: Path) -> None:
    first = library.install(source, root=tmp_path / "root")
    inode = first.library.stat().st_ino
    with first.library.open("rb") as held:
        assert library.install(source, root=tmp_path / "root") == first
        assert first.library.stat().st_ino == inode
        assert held.read() == b"\x7fELF one"


def test_a_new_version_lies_beside_the_old_one_which_containers_still_map(source: Path, tmp_path: Path) -> None:
    old = library.install(source, root=tmp_path / "root")
    source.write_bytes(b"\x7fELF two")
    new = library.install(source, root=tmp_path / "root")
    assert new.library != old.library
    assert old.library.read_bytes() == b"\x7fELF one"
    assert sorted(path.name for path in (tmp_path / "root" / "lib").iterdir()) == sorted(
        [old.library.name, new.library.name]
    )


def test_one_that_was_half_written_is_replaced_and_not_written_into(source: Path, tmp_path: Path) -> None:
    installed = library.install(source, root=tmp_path / "root")
    installed.library.write_bytes(b"\x7fEL")
    with installed.library.open("rb") as mapped:
        library.install(source, root=tmp_path / "root")
        assert installed.library.read_bytes() == b"\x7fELF one"
        assert mapped.read() == b"\x7fEL"


def test_a_missing_library_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(library.LibraryError, match=r"nothing\.so cannot be read .* --library names libgpushare\.so"):
        library.install(tmp_path / "nothing.so", root=tmp_path)


def test_something_that_is_no_library_is_not_given_to_containers(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(library.LibraryError, match="is not a shared library"):
        library.install(tmp_path / "text", root=tmp_path)


def test_a_root_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    with pytest.raises(library.LibraryError, match=r"root.* cannot be .*--root names"):
        library.install(source, root=tmp_path / "root")
