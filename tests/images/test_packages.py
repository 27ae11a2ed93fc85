"""The lock of Debian packages: it is followed, and entries that no longer work are reported."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from config.images import apt, contents, layers, packages
from lab import build as lab_build
from lab import lab_errors


def test_the_lock_has_every_package_for_both_processors() -> None:
    for architecture in contents.MACHINES:
        assert {package.name for package in packages.locked(architecture)} == set(contents.PACKAGES)
    assert packages.LOCK.read_text().startswith(packages.HEADER)


@pytest.mark.parametrize("line", ["libc6 amd64 2.36", "libc6 amd64 2.36 md5:00", "libc6 amd64 2.36 sha256:00 more"])
def test_an_invalid_line_of_the_lock_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "lock").write_text(f"# a comment\n{line}\n")
    with pytest.raises(lab_errors.LabError, match=r"lock:2 is not a package of the lock; .* make images-lock"):
        packages.locked("amd64", tmp_path / "lock")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    lines = [line for line in packages.LOCK.read_text().splitlines() if not line.startswith("zlib1g arm64")]
    (tmp_path / "lock").write_text("\n".join(lines))
    assert packages.locked("amd64", tmp_path / "lock")
    with pytest.raises(lab_errors.LabError, match=r"lacks zlib1g for arm64; .* make images-lock"):
        packages.locked("arm64", tmp_path / "lock")


@pytest.mark.slow
def test_a_removed_version_is_replaced_by_the_newest_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    gone = packages.Package("libuuid1", layers.native(), "2.0-0", "0" * 64)
    ((taken, path),) = packages.fetch([gone]).items()
    assert (taken.name, taken.architecture) == ("libuuid1", layers.native())
    assert taken.version != gone.version
    field = subprocess.run(["dpkg-deb", "--field", path, "Version"], capture_output=True, text=True, check=True)
    assert field.stdout.strip() == taken.version
    said = capsys.readouterr().err
    assert f"no longer have libuuid1 2.0-0 ({layers.native()}); taking {taken.version}" in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_an_unreachable_mirror_is_not_a_removed_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = apt.Apt()
    chosen.update()
    wanted = packages.newest(["libuuid1"], layers.native())
    lists = lab_build.cache_directory() / "images" / "apt" / "lists"
    monkeypatch.setenv("GPUSHARE_CACHE", str(tmp_path / "cache"))
    with chosen.held():
        shutil.copytree(lists, tmp_path / "cache" / "images" / "apt" / "lists")
    monkeypatch.setattr(apt, "CONFIGURATION", f'{apt.CONFIGURATION}Acquire::Retries "0";\n')
    # A proxy on a reserved port, where nothing listens.
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:1")
    with pytest.raises(lab_errors.LabError, match=r"apt could not download libuuid1:.*127\.0\.0\.1"):
        packages.fetch(wanted)


@pytest.mark.slow
def test_sources_of_another_debian_release_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.sources").write_text("")
    monkeypatch.setenv(apt.SOURCES, str(tmp_path / "empty.sources"))
    monkeypatch.setenv("GPUSHARE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(lab_errors.LabError, match=r"have no libc6, zlib1g of Debian bookworm .*GPUSHARE_APT_SOURCES"):
        packages.newest(["zlib1g", "libc6"], layers.native())
