"""The layers of the C code hold, the READMEs show them, and the check notices violations."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import layers


def section(tree: layers.SourceTree) -> str:
    return (tree.sources / "README.md").read_text().partition("## Layers\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    for tree in layers.TREES:
        subprocess.run(["make", "-s", "-C", tree.sources], check=True)


@pytest.fixture
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> layers.SourceTree:
    """A copy of the sources and objects of the tree named by the parameter, for a test to break."""
    original = {tree.sources.name: tree for tree in layers.TREES}[request.param]
    copied = dataclasses.replace(original, sources=tmp_path / "sources", objects=tmp_path / "objects")
    shutil.copytree(original.sources, copied.sources, ignore=shutil.ignore_patterns("__pycache__"))
    for layer in original.heights:
        if any((original.sources / layer).glob("*.c")):
            shutil.copytree(original.objects / layer, copied.objects / layer)
    return copied


def compile_again(tree: layers.SourceTree, name: str) -> None:
    flags = ["-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-I", tree.sources]
    command = ["gcc", *flags, "-c", "-o", tree.objects / f"{name}.o", tree.sources / name]
    subprocess.run(command, check=True)


both = pytest.mark.parametrize("tree", ["interposer", "simgpu"], indirect=True)


@both
def test_layers_hold(tree: layers.SourceTree) -> None:
    assert layers.findings(tree) == []


@pytest.mark.parametrize(
    ("tree", "name", "line", "why"),
    [
        ("interposer", "share/share.c", "session/helper.h", "share/share must not see session/helper"),
        ("interposer", "memory/cache.c", "compute/gate.h", "memory/cache must not see compute/gate"),
        ("interposer", "base/table.h", "share/quota.h", "base/table must not see share/quota"),
        ("interposer", "hooks/launches_aarch64.S", "planted.h", "hooks/launches must not see ./planted"),
        ("interposer", "compute/gate.c", "compute/launch.h", "these use each other in a circle: compute/"),
        ("simgpu", "image/gpus.h", "state/slots.h", "image/gpus must not see state/slots"),
        ("simgpu", "state/slots.c", "time/timeline.h", "state/slots must not see time/timeline"),
        ("simgpu", "nvml/mig.c", "cuda/device/mps.h", "nvml/mig must not see cuda/device/mps"),
        ("simgpu", "cuda/memory/pool.c", "cuda/stream/stream.h", "cuda/memory/pool must not see cuda/stream/stream"),
        ("simgpu", "cuda/kernel/launch.c", "cuda/copy/copy.h", "cuda/kernel/launch must not see cuda/copy/copy"),
        ("simgpu", "state/locks.c", "state/slots.h", "these use each other in a circle: state/"),
    ],
    indirect=["tree"],
)
def test_wrong_include_is_found(tree: layers.SourceTree, name: str, line: str, why: str) -> None:
    path = tree.sources / name
    path.write_text(f'#include "{line}"\n{path.read_text()}')
    (only,) = layers.findings(tree)
    assert only.startswith(why)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tree", "name", "code", "why"),
    [
        (
            "interposer",
            "link/wire.c",
            "bool session_join(void); bool planted(void) { return session_join(); }",
            "uses session_join",
        ),
        (
            "interposer",
            "memory/pool.c",
            "void gate_close(unsigned); void planted(void) { gate_close(0); }",
            "uses gate_close",
        ),
        ("interposer", "cuda/event.c", "void planted(void) { (void)cuCtxSynchronize(); }", "uses cuCtxSynchronize"),
        (
            "interposer",
            "cuda/stream.c",
            "extern unsigned gate_word; unsigned planted(void) { return gate_word; }",
            "uses gate_word",
        ),
        (
            "interposer",
            "compute/gate.c",
            "void flow_drop(void *); void planted(void) { flow_drop(0); }",
            "in a circle: compute/",
        ),
        ("simgpu", "time/usage.c", "int cuInit(unsigned); int planted(void) { return cuInit(0); }", "uses cuInit"),
        (
            "simgpu",
            "cuda/device/mps.c",
            "void pools_trim(void); void planted(void) { pools_trim(); }",
            "uses pools_trim",
        ),
        (
            "simgpu",
            "cuda/stream/stream.c",
            "void capture_abandon(void *); void planted(void) { capture_abandon(0); }",
            "in a circle: cuda/stream/",
        ),
    ],
    indirect=["tree"],
)
def test_use_without_an_include_is_found(tree: layers.SourceTree, name: str, code: str, why: str) -> None:
    path = tree.sources / name
    path.write_text(f"{path.read_text()}\n{code}\n")
    compile_again(tree, name)
    (only,) = layers.findings(tree)
    assert why in only


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ("interposer", "planted.c"),
        ("interposer", "planted/planted.c"),
        ("interposer", "compute/planted/planted.h"),
        ("simgpu", "planted.h"),
        ("simgpu", "cuda/planted.c"),
    ],
    indirect=["tree"],
)
def test_file_outside_the_layers_is_found(tree: layers.SourceTree, name: str) -> None:
    path = tree.sources / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (only,) = layers.findings(tree)
    assert only.startswith(f"{name} is in no layer: put it into one of {tree.layers[0][0]}, ")


@pytest.mark.parametrize(
    ("tree", "name"),
    [("interposer", "compute/gate.c.o"), ("simgpu", "cuda/stream/event.c.o")],
    indirect=["tree"],
)
def test_missing_object_is_an_error(tree: layers.SourceTree, name: str) -> None:
    (tree.objects / name).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{name} is missing: run `make build` first")):
        layers.findings(tree)


@pytest.mark.parametrize("tree", layers.TREES, ids=lambda tree: tree.sources.name)
def test_readme_shows_the_layers(tree: layers.SourceTree) -> None:
    shown = re.findall(r"^    (.+)$", section(tree), re.MULTILINE)
    assert tuple(tuple(row.split(" | ")) for row in shown) == tree.layers


@pytest.mark.parametrize("tree", layers.TREES, ids=lambda tree: tree.sources.name)
def test_readme_describes_each_file(tree: layers.SourceTree) -> None:
    patterns: dict[str, list[str]] = {}
    layer = ""
    for first, names in re.findall(r"^\| (?:`([\w/]+)` )?\| (`.*?) \|", section(tree), re.MULTILINE):
        layer = first or layer
        patterns.setdefault(layer, []).extend(re.findall(r"`([^`]+)`", names))
    assert list(patterns) == [layer for row in tree.layers for layer in row]
    for layer, shown in patterns.items():
        folder = tree.sources / layer
        files = {path for pattern in shown for path in folder.glob(pattern)}
        assert all(any(folder.glob(pattern)) for pattern in shown), layer
        headers = {path.with_suffix(".h") for path in files}
        assert set(folder.iterdir()) - files - headers == set(), layer
