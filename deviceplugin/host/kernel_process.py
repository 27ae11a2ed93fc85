"""What the kernel says of a process: who is at the other end of a socket, whether it lives, what it has mapped.

A pid alone names nobody: it is given again once its process is gone. A process here is a pid with the time it started,
held by a pidfd, which becomes readable when the process is dead with all its threads, and not before.

What a process is called, and the files that it has mapped, are bytes of its own choice and need be not text.
"""

from __future__ import annotations

import dataclasses
import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
# As many mappings as the kernel lets a process have take seven megabytes, with paths of the usual length. Of one whose
# paths are longer, so that looking takes long, the rest is not looked at.
MAX_MAPS_BYTES: Final = 16 << 20
_MAPS_FIELDS: Final = 6  # of a line: addresses, permissions, offset, device, inode, path
_SO_PEERPIDFD: Final = getattr(socket, "SO_PEERPIDFD", 77)
_CREDENTIALS: Final = struct.Struct("iII")


@dataclasses.dataclass(frozen=True, slots=True)
class KernelProcess:
    """A process; `start_ticks` is when it started, in the kernel's ticks since boot. Whoever has it closes `pidfd`."""

    pid: int
    start_ticks: int
    pidfd: int

    def is_dead(self) -> bool:
        """Whether nothing of it runs any more."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))


def peer(connection: socket.socket, *, proc: Path = PROC) -> KernelProcess:
    """The process that connected. Raises ProcessLookupError when it is gone, or not visible from here."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(data)
    if pid <= 0:
        raise ProcessLookupError("the peer's process is not visible: the agent needs the host's pid namespace")
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        # Before Linux 6.5. Between its connect and now it may have died and its pid been given again; so little time
        # would that be that nobody can count on it.
        pidfd = os.pidfd_open(pid)
    return _open(pid, pidfd, proc)


def find(pid: int, start_ticks: int, *, proc: Path = PROC) -> KernelProcess | None:
    """The process that had this pid then, if it still lives."""
    try:
        process = _open(pid, os.pidfd_open(pid), proc)
    except OSError:
        return None
    if process.start_ticks == start_ticks and not process.is_dead():
        return process
    os.close(process.pidfd)
    return None


def with_start(pid: int, *, proc: Path = PROC) -> tuple[int, int] | None:
    """The pid with when its process started; None if it is gone."""
    try:
        return pid, _start_ticks(pid, proc)
    except (OSError, IndexError, ValueError):
        return None


def _start_ticks(pid: int, proc: Path) -> int:
    return int(_stat(pid, proc)[19])


def _stat(pid: int, proc: Path) -> list[bytes]:
    """The fields of its stat from the third on: the name before them, in parentheses, may hold anything."""
    return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()


def _open(pid: int, pidfd: int, proc: Path) -> KernelProcess:
    try:
        held = KernelProcess(pid, _start_ticks(pid, proc), pidfd)
        if held.is_dead():
            raise ProcessLookupError(f"the process {pid} has ended")
    except (OSError, IndexError, ValueError) as error:
        os.close(pidfd)
        raise ProcessLookupError(f"the process {pid} has ended") from error
    return held


def is_stopped(pid: int, *, proc: Path = PROC) -> bool:
    """Whether it has been told to stand still, by a signal or a debugger; what is gone has not."""
    try:
        return _stat(pid, proc)[0] in {b"T", b"t"}
    except (OSError, IndexError):
        return False


def parent(pid: int, *, proc: Path = PROC) -> int | None:
    """The pid of its parent; None if it is gone."""
    try:
        return int(_stat(pid, proc)[1])
    except (OSError, IndexError, ValueError):
        return None


def cgroups(pid: int, *, proc: Path = PROC) -> str:
    """The text of its cgroup file; raises OSError when it is gone.

    In cgroup v1 a first thread that has ended is in no cgroup any more, while the process lives on in its other
    threads. The text is that of a thread which still runs.
    """
    directory = proc / str(pid)
    if _stat(pid, proc)[:1] == [b"Z"]:
        with os.scandir(directory / "task") as tasks:
            directory = next((Path(task) for task in tasks if task.name != str(pid)), directory)
    # Bytes: read as text, a carriage return in a name would become a line feed.
    return os.fsdecode((directory / "cgroup").read_bytes())


@dataclasses.dataclass(frozen=True, slots=True)
class Mapping:
    """Whether a process has a file mapped; `link` opens it again.

    known: false for a process that is ending, whose memory is gone already, for one that we may not look into (that
        takes CAP_SYS_PTRACE, and opening the link CAP_CHECKPOINT_RESTORE), and for one that has too much to look at.
    read_bytes: how much of the list was looked at.
    """

    known: bool
    link: Path | None
    read_bytes: int = dataclasses.field(default=0, compare=False)


def mapping(pid: int, device_inode: tuple[int, int], *, proc: Path = PROC, max_bytes: int | None = None) -> Mapping:
    """Where a process has the file with this device and inode mapped.

    Blocks for as long as it takes, or as the process changes what it has mapped. max_bytes: of the list, that are
    looked at; by default MAX_MAPS_BYTES.
    """
    directory = proc / str(pid)
    device, inode = device_inode
    wanted = f"{os.major(device):02x}:{os.minor(device):02x} {inode}".encode().split()
    known, read_bytes = False, 0
    try:
        with (directory / "maps").open("rb") as lines:
            for line in _bounded(lines, MAX_MAPS_BYTES if max_bytes is None else max_bytes):
                known = line is not None
                read_bytes += len(line or b"")
                fields = line.split(maxsplit=5) if line is not None else []
                if fields[3:5] == wanted:
                    low, high = (part.lstrip("0") or "0" for part in fields[0].decode().split("-"))
                    return Mapping(True, directory / "map_files" / f"{low}-{high}", read_bytes)
    except OSError:
        known = False
    return Mapping(known, None, read_bytes)


def mapped_files(pid: int, *, proc: Path = PROC) -> frozenset[str] | None:
    """The paths that a process has mapped, as it sees them, as far as they are looked at.

    None if it is gone, or we may not look into it.
    """
    paths: set[str] = set()
    known = False
    try:
        with (proc / str(pid) / "maps").open("rb") as lines:
            for line in _bounded(lines, MAX_MAPS_BYTES):
                known = True
                fields = line.rstrip(b"\n").split(maxsplit=5) if line is not None else []
                if len(fields) == _MAPS_FIELDS:
                    paths.add(os.fsdecode(fields[-1]))
    except OSError:
        return None
    return frozenset(paths) if known else None


def _bounded(lines: Iterable[bytes], left_bytes: int) -> Iterator[bytes | None]:
    """The lines; None in place of those that are beyond the most that is looked at."""
    for line in lines:
        left_bytes -= len(line)
        if left_bytes < 0:
            yield None
            return
        yield line


# What it takes to open the ledger that another process has mapped: to look into it, and to follow its mapping's link.
TO_TAKE_OVER: Final = {"SYS_PTRACE": 19, "CHECKPOINT_RESTORE": 40}


def missing_capabilities(wanted: dict[str, int] = TO_TAKE_OVER, *, proc: Path = PROC) -> tuple[str, ...]:
    """Which of these capabilities, by their numbers, this process lacks; without others, for taking over ledgers."""
    status = (proc / "self/status").read_text()
    (effective,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return tuple(name for name, bit in wanted.items() if not effective >> bit & 1)


def boot_id(*, proc: Path = PROC) -> str:
    """What tells this run of the kernel from all others."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()
