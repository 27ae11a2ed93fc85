"""A cgroup that holds everything a lab's nodes start, so that ending it needs no bookkeeping and misses nothing.

Works with version 2, version 1 and the hybrid of both, without systemd.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from lab import lab_errors

ROOT = Path("/sys/fs/cgroup")
# Where a process joins, of version 1's hierarchies: those through which no container is ever left behind.
JOINED = ("memory", "pids")
KILL_SECONDS = 15.0
# By default all of a lab gets no more of a core than one process beside it. It stands for a machine: ten times that.
_WEIGHTS = (("cpu.shares", "10240"), ("cpu.weight", "1000"))  # of version 1 and 2
_THAWED = (("freezer.state", "THAWED"), ("cgroup.freeze", "0"))  # of version 1 and 2


def hierarchies() -> list[Path]:
    """Return the root of each mounted hierarchy: one with version 2, else one per controller."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink())


def create(name: str) -> None:
    """Make a cgroup in each hierarchy, ready for processes and for the kubelet to make others below it."""
    for root in hierarchies():
        path = root
        for part in name.split("/"):
            if root == ROOT:  # version 2: a child has the controllers that its parent hands on
                controllers = (path / "cgroup.controllers").read_text().split()
                (path / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
            parent, path = path, path / part
            path.mkdir(exist_ok=True)
            for file_name, weight in _WEIGHTS:
                if (path / file_name).exists():
                    (path / file_name).write_text(weight)
            # version 1: empty in a new one, and then no process may join
            for inherited in ("cpuset.cpus", "cpuset.mems"):
                file = path / inherited
                if root != ROOT and file.exists() and not file.read_text().strip():
                    file.write_text((parent / inherited).read_text())


def joined(name: str) -> tuple[Path, ...]:
    """Return the cgroup's directories into which a process has to be put."""
    roots = hierarchies()
    chosen = roots if roots == [ROOT] else [root for root in roots if root.name in JOINED]
    return tuple(root / name for root in chosen)


def members(name: str) -> set[int]:
    """Return the pids in a cgroup and all below it, in any hierarchy."""
    pids: set[int] = set()
    for root in hierarchies():
        for group in _groups(root / name):
            with contextlib.suppress(OSError):  # removed, or emptied, just now
                pids.update(map(int, (group / "cgroup.procs").read_text().split()))
    return pids - {0}


def members_below(name: str, part: str) -> set[int]:
    """Return the pids in those cgroups below `name` whose path has `part` in it, as a container's has its id."""
    pids: set[int] = set()
    for root in hierarchies():
        for group in _groups(root / name):
            if part in str(group):
                with contextlib.suppress(OSError):
                    pids.update(map(int, (group / "cgroup.procs").read_text().split()))
    return pids - {0}


def kill(name: str) -> None:
    """End every process in a cgroup and below it.

    Raises:
        LabError: one does not end.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while pids := members(name):
        if time.monotonic() > deadline:
            raise lab_errors.LabError(f"processes {sorted(pids)} in cgroup {name} do not end even by SIGKILL")
        for pid in pids:
            _kill(pid, name)
        _thaw(name)


def remove(name: str) -> None:
    """Remove a cgroup without processes, and all below it.

    Raises:
        LabError: the kernel still counts a process in it.
    """
    deadline = time.monotonic() + KILL_SECONDS
    for root in hierarchies():
        for group in sorted(_groups(root / name), reverse=True):  # children before parents
            while True:
                try:
                    group.rmdir()
                except FileNotFoundError:
                    break
                except OSError as error:  # a member just killed leaves a moment later
                    if time.monotonic() > deadline:
                        raise lab_errors.LabError(f"{group} cannot be removed: {error.strerror}") from error
                    time.sleep(0.01)
                else:
                    break


def _groups(top: Path) -> Iterator[Path]:
    for directory, _, _ in os.walk(top):
        yield Path(directory)


def _thaw(name: str) -> None:
    """Thaw a container. runc freezes it for a change, and it stays frozen if runc is killed; no signal reaches it
    then.
    """
    for root in hierarchies():
        for group in _groups(root / name):
            for file, word in _THAWED:
                if (group / file).exists():
                    with contextlib.suppress(OSError):  # removed just now
                        (group / file).write_text(word)


def _kill(pid: int, name: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Checked again with the process held: the pid cannot have been reused.
        if f"/{name}" in Path(f"/proc/{pid}/cgroup").read_text():
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], 1.0)
    except (FileNotFoundError, ProcessLookupError):
        pass
    finally:
        os.close(handle)
