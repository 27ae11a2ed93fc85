"""A cgroup with everything that a lab's nodes start, so that all of it can be killed without a record of processes.

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
# The hierarchies of version 1 that daemons join. Every container is in these, so no process is missed.
JOINED = ("memory", "pids")
KILL_SECONDS = 15.0
# By default a whole lab gets as much of a core as one process outside it. It stands for a machine, so it gets ten times
# that.
_WEIGHTS = (("cpu.shares", "10240"), ("cpu.weight", "1000"))  # version 1, version 2
_THAWED = (("freezer.state", "THAWED"), ("cgroup.freeze", "0"))  # version 1, version 2


def hierarchies() -> list[Path]:
    """Return the root of each mounted hierarchy: one with version 2, else one per controller."""
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink())


def create(name: str) -> None:
    """Create a cgroup in each hierarchy, ready for processes and for the kubelet's cgroups below it."""
    for root in hierarchies():
        path = root
        for part in name.split("/"):
            if root == ROOT:  # version 2: a child has only the controllers that its parent enables
                controllers = (path / "cgroup.controllers").read_text().split()
                (path / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))
            parent, path = path, path / part
            path.mkdir(exist_ok=True)
            for file_name, weight in _WEIGHTS:
                if (path / file_name).exists():
                    (path / file_name).write_text(weight)
            # version 1: a new cgroup has no CPUs and no memory nodes, and no process can join it
            for inherited in ("cpuset.cpus", "cpuset.mems"):
                file = path / inherited
                if root != ROOT and file.exists() and not file.read_text().strip():
                    file.write_text((parent / inherited).read_text())


def joined(name: str) -> tuple[Path, ...]:
    """Return the directories of the cgroup that a process has to join."""
    roots = hierarchies()
    chosen = roots if roots == [ROOT] else [root for root in roots if root.name in JOINED]
    return tuple(root / name for root in chosen)


def members(name: str) -> set[int]:
    """Return the pids in a cgroup and below it, in any hierarchy."""
    pids: set[int] = set()
    for root in hierarchies():
        for group in _groups(root / name):
            with contextlib.suppress(OSError):  # the cgroup was removed meanwhile
                pids.update(map(int, (group / "cgroup.procs").read_text().split()))
    return pids - {0}


def members_below(name: str, part: str) -> set[int]:
    """Return the pids in the cgroups below `name` whose path contains `part`, such as a container's id."""
    pids: set[int] = set()
    for root in hierarchies():
        for group in _groups(root / name):
            if part in str(group):
                with contextlib.suppress(OSError):
                    pids.update(map(int, (group / "cgroup.procs").read_text().split()))
    return pids - {0}


def kill(name: str) -> None:
    """Kill every process in a cgroup and below it.

    Raises:
        LabError: a process does not exit.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while pids := members(name):
        if time.monotonic() > deadline:
            raise lab_errors.LabError(f"processes {sorted(pids)} in cgroup {name} do not exit even after SIGKILL")
        for pid in pids:
            _kill(pid, name)
        _thaw(name)


def remove(name: str) -> None:
    """Remove a cgroup without processes, and all cgroups below it.

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
                except OSError as error:  # a killed process leaves its cgroup a moment later
                    if time.monotonic() > deadline:
                        raise lab_errors.LabError(f"{group} cannot be removed: {error.strerror}") from error
                    time.sleep(0.01)
                else:
                    break


def _groups(top: Path) -> Iterator[Path]:
    for directory, _, _ in os.walk(top):
        yield Path(directory)


def _thaw(name: str) -> None:
    """Thaw all containers. runc freezes a container to change it; if runc is killed then, the container stays frozen,
    and no signal reaches it.
    """
    for root in hierarchies():
        for group in _groups(root / name):
            for file, word in _THAWED:
                if (group / file).exists():
                    with contextlib.suppress(OSError):  # removed meanwhile
                        (group / file).write_text(word)


def _kill(pid: int, name: str) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Check again while the pidfd is open: by now the pid cannot be reused.
        if f"/{name}" in Path(f"/proc/{pid}/cgroup").read_text():
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], 1.0)
    except (FileNotFoundError, ProcessLookupError):
        pass
    finally:
        os.close(handle)
