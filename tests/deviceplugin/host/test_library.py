"""Installation of the library on the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deviceplugin.host import library


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "libgpushare.so"
    path.write_bytes(b"\x7fELF one")
    return path


def test_library_is_named_by_its_content(source: Path, tmp_path: Path) -> None:
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


def test_new_version_keeps_the_old_file(source: Path, tmp_path: Path) -> None:
    old = library.install(source, root=tmp_path / "root")
    source.write_bytes(b"\x7fELF two")
    new = library.install(source, root=tmp_path / "root")
    assert new.library != old.library
    assert old.library.read_bytes() == b"\x7fELF one"
    assert sorted(path.name for path in (tmp_path / "root" / "lib").iterdir()) == sorted(
        [old.library.name, new.library.name]
    )


def test_running_program_keeps_the_old_library(tmp_path: Path) -> None:
    plain = ["gcc", "-shared", "-fPIC", "-nostartfiles", "-o", tmp_path / "libgpushare.so", "-x", "c", "-"]
    program = (
        "import ctypes, sys; f = ctypes.CDLL(None).version; print(f(), flush=True); input(); print(f(), flush=True)"
    )
    built, seen = [], []
    for version in (1, 2):
        text = f"int version(void) {{ return {version}; }} static char ballast[1 << 16] = {{1}}; char *b = ballast;"
        subprocess.run(plain, input=text.encode(), check=True)
        built.append(library.install(tmp_path / "libgpushare.so", root=tmp_path / "root"))
        if version == 1:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                env={"LD_PRELOAD": str(built[0].library)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            seen.append(process.stdout.readline())
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    output, _ = process.communicate("\n", timeout=20)
    assert [*seen, output] == ["1\n", "1\n"]
    assert f"{built[0].library}\n" in mapped, "the old file keeps its name"
    assert built[0].library.stat().st_ino != built[1].library.stat().st_ino


def test_replaces_a_truncated_library(source: Path, tmp_path: Path) -> None:
    installed = library.install(source, root=tmp_path / "root")
    installed.library.write_bytes(b"\x7fEL")
    with installed.library.open("rb") as mapped:
        library.install(source, root=tmp_path / "root")
        assert installed.library.read_bytes() == b"\x7fELF one"
        assert mapped.read() == b"\x7fEL"


def test_missing_library_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        library.LibraryError, match=r"nothing\.so cannot be read .* --library must name libgpushare\.so"
    ):
        library.install(tmp_path / "nothing.so", root=tmp_path)


def test_refuses_a_file_that_is_not_a_library(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(library.LibraryError, match="is not a shared library"):
        library.install(tmp_path / "text", root=tmp_path)


def test_unwritable_root_is_an_error_with_a_remedy(source: Path, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    with pytest.raises(library.LibraryError, match=r"root.* cannot be .*--root must name"):
        library.install(source, root=tmp_path / "root")


def test_refuses_a_noexec_root(source: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    program = "import sys, pathlib; from deviceplugin.host import library; library.install(*map(pathlib.Path, sys.argv[1:2]), root=pathlib.Path(sys.argv[2]))"
    mount = f'mount -t tmpfs -o noexec tmpfs {tmp_path / "root"} && exec "$@"'
    command = ["unshare", "--mount", "/bin/sh", "-c", mount, "sh", sys.executable, "-c", program]
    ended = subprocess.run([*command, source, tmp_path / "root"], capture_output=True, text=True, check=False)
    if "ermission denied" in ended.stderr or "not permitted" in ended.stderr:
        pytest.skip("needs root, to mount")
    assert "is mounted noexec, so no program can load a library from it: --root must name" in ended.stderr
