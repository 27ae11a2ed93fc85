"""A library is removed when no pod and no process can need it, and not earlier."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.host import library
from gpushare import contract
from tests.deviceplugin import waiting

LIBRARY = "int version(void) { return %d; } static char ballast[1 << 16] = {1}; char *b = ballast;"


class Node:
    """A host with one agent after the other, each with its own library."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.proc = Path("/proc")
        self.pods: list[dict[str, Any]] | None = []
        self.upgrade(1)

    def upgrade(self, version: int) -> Path:
        """Start the next agent; return the path of its library."""
        source = self.directory / "libgpushare.so"
        compiler = ["gcc", "-shared", "-fPIC", "-nostartfiles", "-Wl,--build-id=none", "-o", source, "-x", "c", "-"]
        subprocess.run(compiler, input=(LIBRARY % version).encode(), check=True)
        self.installed = library.install(source, root=self.root).library
        self.restart()
        return self.installed

    def restart(self) -> None:
        self.old = library.OldLibraries(self.installed, self.root, pods=lambda: self.pods, proc=self.proc)

    def there(self) -> set[Path]:
        return set((self.root / "lib").iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_removes_an_unused_library_and_keeps_the_current_one(node: Node) -> None:
    old, new = node.installed, node.upgrade(2)
    assert node.there() == {old, new}
    node.old.remove_unused(frozenset())
    assert node.there() == {new}
    node.old.remove_unused(frozenset())
    assert node.there() == {new}


def test_keeps_a_library_while_an_older_pod_lives(node: Node) -> None:
    old, new = node.installed, node.upgrade(2)
    node.old.remove_unused(frozenset({"a", "b"}))
    node.old.remove_unused(frozenset({"b", "later"}))
    assert node.there() == {old, new}
    node.old.remove_unused(frozenset({"later"}))
    assert node.there() == {new}, "the later pod got the new library"


def test_next_agent_knows_the_recorded_pods(node: Node) -> None:
    old, new = node.installed, node.upgrade(2)
    node.old.remove_unused(frozenset({"a"}))
    node.old.remove_unused(frozenset({"a", "later"}))
    node.restart()
    node.old.remove_unused(frozenset({"later"}))
    assert node.there() == {new}
    assert old not in node.there()


def test_pods_that_arrived_between_agents_count(node: Node) -> None:
    old, new = node.installed, node.upgrade(2)
    node.old.remove_unused(frozenset({"a"}))
    node.restart()
    node.old.remove_unused(frozenset({"a", "meanwhile"}))
    node.old.remove_unused(frozenset({"meanwhile"}))
    assert node.there() == {old, new}
    node.old.remove_unused(frozenset())
    assert node.there() == {new}


def test_removes_several_libraries_independently(node: Node) -> None:
    first = node.installed
    second = node.upgrade(2)
    node.old.remove_unused(frozenset({"a"}))
    node.old.remove_unused(frozenset({"a", "b"}))
    third = node.upgrade(3)
    node.old.remove_unused(frozenset({"a", "b"}))
    assert node.there() == {first, second, third}
    node.old.remove_unused(frozenset({"b"}))
    assert node.there() == {second, third}
    node.old.remove_unused(frozenset())
    assert node.there() == {third}


def test_keeps_a_library_that_a_downgrade_uses_again(node: Node) -> None:
    first = node.installed
    second = node.upgrade(2)
    node.old.remove_unused(frozenset({"a"}))
    assert node.upgrade(1) == first
    node.old.remove_unused(frozenset({"b"}))
    assert node.there() == {first, second}
    # When it is replaced again, the pods of that time count.
    node.upgrade(3)
    node.old.remove_unused(frozenset({"c"}))
    node.old.remove_unused(frozenset({"c"}))
    assert first in node.there()
    node.old.remove_unused(frozenset())
    assert node.there() == {node.installed}


def test_keeps_a_library_mapped_under_any_name(node: Node, tmp_path: Path) -> None:
    old = node.installed
    other = tmp_path / "other-name.so"
    other.hardlink_to(old)
    program = [sys.executable, "-c", "print(flush=True); input()"]
    process = subprocess.Popen(
        program, env={"LD_PRELOAD": str(other)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    new = node.upgrade(2)
    node.old.remove_unused(frozenset())
    assert node.there() == {old, new}
    process.communicate("\n", timeout=10)
    node.old.remove_unused(frozenset())
    assert node.there() == {new}


def test_keeps_all_libraries_while_a_process_is_unreadable(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = node.installed
    (tmp_path / "proc" / "12").mkdir(parents=True)
    (tmp_path / "proc" / "12" / "maps").mkdir()  # exists but is unreadable
    (tmp_path / "proc" / "12" / "cgroup").write_text("0::/kubepods/pod1234/5678\n")
    node.proc = tmp_path / "proc"
    new = node.upgrade(2)
    node.old.remove_unused(frozenset())
    assert node.there() == {old, new}
    assert "Could not read a process's mappings: keeping old libraries" in caplog.text
    (tmp_path / "proc" / "12" / "cgroup").write_text("0::/system.slice/hidden.service\n")
    node.old.remove_unused(frozenset())
    assert node.there() == {new}, "processes outside of pods have no library of ours"


@pytest.mark.parametrize("text", ["nonsense\n", "7f00-7f01 r--p 0 08:01 17 /a\n" * 9])
def test_keeps_all_libraries_if_mappings_are_invalid_or_too_long(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(library, "MAX_BYTES", 100)
    (tmp_path / "proc" / "12").mkdir(parents=True)
    (tmp_path / "proc" / "12" / "maps").write_text(text)
    (tmp_path / "proc" / "12" / "cgroup").write_text("0::/kubepods/pod1234/5678\n")
    (tmp_path / "proc" / "uptime").touch()
    node.proc = tmp_path / "proc"
    node.upgrade(2)
    node.old.remove_unused(frozenset())
    assert len(node.there()) == 2


def test_ignores_a_process_that_has_exited(node: Node, tmp_path: Path) -> None:
    (tmp_path / "proc" / "12").mkdir(parents=True)
    node.proc = tmp_path / "proc"
    new = node.upgrade(2)
    node.old.remove_unused(frozenset())
    assert node.there() == {new}


def test_keeps_unrelated_files(node: Node) -> None:
    beside = [node.root / "lib" / name for name in ("libgpushare-mine.so", "other.so", ".libgpushare-0.so.12")]
    for path in beside:
        path.touch()
    new = node.upgrade(2)
    node.old.remove_unused(frozenset())
    assert node.there() == {new, *beside}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"seen": [], "holders": {"l.so": 7}}', '{"seen": 1}', "null"])
def test_invalid_record_is_set_aside_and_all_pods_count(
    node: Node, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    old = node.installed
    kept = node.root / library.RECORD_NAME
    kept.write_text(text)
    new = node.upgrade(2)
    node.old.remove_unused(frozenset({"a"}))
    assert node.there() == {old, new}
    assert json.loads(kept.read_text()) == {"seen": ["a"], "holders": {old.name: ["a"]}}
    assert (node.root / f"{library.RECORD_NAME}.unreadable").read_text() == text
    assert "Starting without the record of pods and libraries" in caplog.text


def test_logs_a_library_that_cannot_be_removed(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    node.upgrade(2)
    monkeypatch.setattr(Path, "unlink", unlink)
    node.old.remove_unused(frozenset())
    assert "Could not remove a library" in caplog.text


def pod(uid: str, phase: str = "Running", *, shares: bool = True) -> dict[str, Any]:
    annotations = {contract.ALLOCATION: "a1"} if shares else {}
    return {"metadata": {"uid": uid, "annotations": annotations}, "status": {"phase": phase}}


@pytest.mark.slow
async def test_waits_for_the_pods_and_counts_those_that_may_restart(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "POLL_SECONDS", 0.01)
    old, new = node.installed, node.upgrade(2)
    node.pods = None
    running = asyncio.create_task(node.old.run())
    try:
        await asyncio.sleep(0.1)
        assert node.there() == {old, new}
        node.pods = [pod("a"), pod("over", "Succeeded"), pod("failed", "Failed"), pod("other", shares=False)]
        kept = node.root / library.RECORD_NAME
        await waiting.until(kept.exists)
        assert json.loads(kept.read_text()) == {"seen": ["a"], "holders": {old.name: ["a"]}}
        node.pods = node.pods[1:]
        await waiting.until(lambda: node.there() == {new})
    finally:
        running.cancel()
