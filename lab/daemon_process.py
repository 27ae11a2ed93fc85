"""Daemons that outlive their launcher and are identified by pid and start time, never by name.

Each daemon writes its own record before it becomes the program, so it never runs without a record.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab import lab_errors

# Arguments: record file, cgroups to join (separated by blanks), program and its arguments. Field 22 of stat is the
# start time, which distinguishes the process from a later one with the same pid; the boot id does so across reboots.
BECOME = """
record=$1 groups=$2; shift 2
for group in $groups; do echo 0 >"$group/cgroup.procs" || exit 1; done
{ cut -d ' ' -f 1,22 "/proc/$$/stat" && cat /proc/sys/kernel/random/boot_id; } >"$record.new" || exit 1
mv "$record.new" "$record" && exec "$@" 9>&-
"""
# The intermediate shell exits at once, so the daemon's parent is init, not the lab's launcher. The daemon's shell keeps
# the launcher's pipe open as descriptor 9 until it executes the program or exits, so the launcher notices either.
LAUNCH = 'exec 9>&0; "$@" </dev/null &'
LAUNCH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """A daemon to run. name: names its record and its log. groups: the cgroup directories that it joins."""

    name: str
    argv: tuple[str, ...]
    directory: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[Path, ...] = ()


def start(process: Process, records: Path, logs: Path) -> int:
    """Start a daemon unless it runs already; return its pid.

    Raises:
        LabError: it could not be started; the message ends with the last lines of its log.
    """
    running = pid_of(process.name, records)
    if running is not None:
        return running
    record = records / process.name
    record.unlink(missing_ok=True)
    arguments = ["sh", "-c", BECOME, "sh", str(record), " ".join(map(str, process.groups)), *process.argv]
    reading, writing = os.pipe()
    with os.fdopen(reading) as launched:
        with os.fdopen(writing, "w") as launching, (logs / process.name).open("ab") as log:
            subprocess.run(
                ["sh", "-c", LAUNCH, "sh", *arguments],
                cwd=process.directory,
                env={**os.environ, **process.environment},
                stdin=launching,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=True,
            )
        select.select([launched], [], [], LAUNCH_SECONDS)  # end of file: the daemon has started or failed
    if not record.exists():
        raise lab_errors.LabError(f"{process.name} did not start: {last_lines(logs / process.name)}")
    return int(record.read_text().split()[0])


def pid_of(name: str, records: Path) -> int | None:
    """Return the pid of a recorded daemon that is alive, else None."""
    try:
        fields = (records / name).read_text().split()
    except FileNotFoundError:
        return None
    if len(fields) != 3 or fields[2] != Path("/proc/sys/kernel/random/boot_id").read_text().strip():
        return None
    pid = int(fields[0])
    return pid if start_time(pid) == int(fields[1]) else None


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is no such process, or only a zombie.

    A killed process whose main thread has exited is not a zombie while other threads exit: its files and ports are
    still open.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name in parentheses may contain blanks
    threads = int(fields[16])
    return None if state in "ZX" and threads <= 1 else int(fields[18])


def stop(processes: Iterable[tuple[str, float]], records: Path) -> None:
    """Stop recorded daemons in parallel, each given by name and grace period in seconds: SIGTERM first, then
    SIGKILL.
    """
    waiting = []
    for name, seconds in processes:
        handle = _open(name, records)
        if handle is not None:
            _send(handle, signal.SIGTERM)
            waiting.append((name, handle, time.monotonic() + seconds))
        else:
            (records / name).unlink(missing_ok=True)
    for name, handle, deadline in waiting:
        with contextlib.closing(os.fdopen(handle)):
            if not ended(handle, deadline - time.monotonic()):
                _send(handle, signal.SIGKILL)
                if not ended(handle, 10.0):
                    raise lab_errors.LabError(f"{name} does not exit even after SIGKILL; look at {records / name}")
        (records / name).unlink(missing_ok=True)


def ended(handle: int, seconds: float) -> bool:
    """Wait for a process to exit, by its pidfd; return whether it did so within `seconds`."""
    return bool(select.select([handle], [], [], max(0.0, seconds))[0])


def last_lines(log: Path, count: int = 5) -> str:
    """Return the end of a log as one string, for an error message."""
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8000))
        lines = file.read().decode(errors="replace").splitlines()
        return "\n".join([f"see {log}, which ends:", *lines[-count:]])
    return f"{log} does not exist"


def _open(name: str, records: Path) -> int | None:
    """Return a pidfd, so that a signal can never reach another process that got the same pid."""
    pid = pid_of(name, records)
    if pid is None:
        return None
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if pid_of(name, records) == pid:  # check again that it is the recorded process, now that the pidfd pins it
        return handle
    os.close(handle)
    return None


def _send(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)
