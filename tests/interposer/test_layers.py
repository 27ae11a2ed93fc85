"""Tests that the library's layers hold, that the README shows them, and that violations are found."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from interposer import layers
from tests.interposer.container import BUILD, ROOT

SOURCES = ROOT / "interposer"
SECTION = (SOURCES / "README.md").read_text().partition("## Layers\n")[2].partition("\n## ")[0]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of sources and objects for a test to change."""
    shutil.copytree(SOURCES, tmp_path / "sources", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (BUILD / "interposer").glob("*/*.o"):
        target = tmp_path / "objects" / path.relative_to(BUILD / "interposer")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def found(copy: Path) -> list[str]:
    return layers.findings(copy / "sources", copy / "objects")


def compile_again(copy: Path, name: str) -> None:
    flags = ["-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-I", copy / "sources"]
    command = ["gcc", *flags, "-c", "-o", copy / "objects" / f"{name}.o", copy / "sources" / name]
    subprocess.run(command, check=True)


def test_layers_hold(copy: Path) -> None:
    assert found(copy) == []


@pytest.mark.parametrize(
    ("name", "line", "why"),
    [
        ("share/share.c", '#include "session/helper.h"', "share/share must not see session/helper"),
        ("memory/cache.c", '#include "compute/gate.h"', "memory/cache must not see compute/gate"),
        ("base/table.h", '#include "share/quota.h"', "base/table must not see share/quota"),
        ("hooks/launches_aarch64.S", '#include "planted.h"', "hooks/launches must not see ./planted"),
        ("compute/gate.c", '#include "compute/launch.h"', "these use each other in a circle: compute/"),
    ],
)
def test_wrong_include_is_found(copy: Path, name: str, line: str, why: str) -> None:
    path = copy / "sources" / name
    path.write_text(f"{line}\n{path.read_text()}")
    (only,) = found(copy)
    assert only.startswith(why)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("link/wire.c", "bool session_join(void); bool planted(void) { return session_join(); }", "uses session_join"),
        ("memory/pool.c", "void gate_close(unsigned); void planted(void) { gate_close(0); }", "uses gate_close"),
        ("cuda/event.c", "void planted(void) { (void)cuCtxSynchronize(); }", "uses cuCtxSynchronize"),
        ("cuda/stream.c", "extern unsigned gate_word; unsigned planted(void) { return gate_word; }", "uses gate_word"),
        ("compute/gate.c", "void flow_drop(void *); void planted(void) { flow_drop(0); }", "in a circle: compute/"),
    ],
)
def test_use_without_an_include_is_found(copy: Path, name: str, code: str, why: str) -> None:
    path = copy / "sources" / name
    path.write_text(f"{path.read_text()}\n{code}\n")
    compile_again(copy, name)
    (only,) = found(copy)
    assert why in only


@pytest.mark.parametrize("name", ["planted.c", "planted/planted.c", "compute/planted/planted.h"])
def test_file_outside_the_layers_is_found(copy: Path, name: str) -> None:
    path = copy / "sources" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (only,) = found(copy)
    assert only.startswith(f"{name} is in no layer: put it into one of hooks, session")


def test_missing_object_is_an_error(copy: Path) -> None:
    (copy / "objects" / "compute" / "gate.c.o").unlink()
    with pytest.raises(FileNotFoundError, match=r"gate\.c\.o is missing: run `make build` first"):
        found(copy)


def test_readme_shows_the_layers() -> None:
    shown = re.findall(r"^    (.+)$", SECTION, re.MULTILINE)
    assert tuple(tuple(row.split(" | ")) for row in shown) == layers.LAYERS


def test_readme_describes_each_file() -> None:
    patterns: dict[str, list[str]] = {}
    layer = ""
    for first, names in re.findall(r"^\| (?:`(\w+)` )?\| (`.*?) \|", SECTION, re.MULTILINE):
        layer = first or layer
        patterns.setdefault(layer, []).extend(re.findall(r"`([^`]+)`", names))
    assert list(patterns) == [layer for row in layers.LAYERS for layer in row]
    for layer, shown in patterns.items():
        files = {path for pattern in shown for path in (SOURCES / layer).glob(pattern)}
        assert all(any((SOURCES / layer).glob(pattern)) for pattern in shown), layer
        headers = {path.with_suffix(".h") for path in files}
        assert set((SOURCES / layer).iterdir()) - files - headers == set(), layer
