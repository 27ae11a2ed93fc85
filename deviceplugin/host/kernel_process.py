"""Reads the kernel's view of a process: the peer of a socket, whether it lives, its container, and its mappings.

A pid alone is ambiguous, because the kernel reuses it. A process here is a pid with its start time, and a pidfd, which
becomes readable once all threads of the process are dead. Process names and mapped paths are bytes that the process
chooses, and need not be valid text.
"""

from __future__ import annotations

import dataclasses
import os
import re
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpushare.refusal import Refusal

PROC: Final = Path("/proc")
# The maximum number of mappings takes seven megabytes with paths of usual length. The rest of a longer list is not
# read, because that would take long.
MAX_MAPS_BYTES: Final = 16 << 20
_MAPS_FIELDS: Final = 6  # addresses, permissions, offset, device, inode, path
_SO_PEERPIDFD: Final = getattr(socket, "SO_PEERPIDFD", 77)
_CREDENTIALS: Final = struct.Struct("iII")


@dataclasses.dataclass(frozen=True, slots=True)
class KernelProcess:
    """A process. `start_ticks`: kernel ticks since boot. Its owner closes `pidfd`."""

    pid: int
    start_ticks: int
    pidfd: int

    def is_dead(self) -> bool:
        """Whether all its threads have ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))


def peer(connection: socket.socket, *, proc: Path = PROC) -> KernelProcess:
    """Return the process that connected. Raises ProcessLookupError if it is gone, or not visible from here."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _, _ = _CREDENTIALS.unpack(data)
    if pid <= 0:
        raise ProcessLookupError("the peer's process is not visible: the agent needs the host's pid namespace")
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        # Before Linux 6.5. The pid could have been reused between connect and now, but no process can time that.
        pidfd = os.pidfd_open(pid)
    return _open(pid, pidfd, proc)


def find(pid: int, start_ticks: int, *, proc: Path = PROC) -> KernelProcess | None:
    """Return the process if it still owns this pid, else None."""
    try:
        process = _open(pid, os.pidfd_open(pid), proc)
    except OSError:
        return None
    if process.start_ticks == start_ticks and not process.is_dead():
        return process
    os.close(process.pidfd)
    return None


def with_start(pid: int, *, proc: Path = PROC) -> tuple[int, int] | None:
    """Return the pid and the start of its process, or None if it is gone."""
    try:
        return pid, _start_ticks(pid, proc)
    except (OSError, IndexError, ValueError):
        return None


def _stat(pid: int, proc: Path) -> list[bytes]:
    """Return the fields of its stat file after the name, which is in parentheses and may contain anything."""
    return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()


def _start_ticks(pid: int, proc: Path) -> int:
    return int(_stat(pid, proc)[19])


def _open(pid: int, pidfd: int, proc: Path) -> KernelProcess:
    """Return the process; its pidfd is closed otherwise. Raises ProcessLookupError if it has ended."""
    try:
        held = KernelProcess(pid, _start_ticks(pid, proc), pidfd)
    except (OSError, IndexError, ValueError) as error:
        os.close(pidfd)
        raise ProcessLookupError(f"the process {pid} has ended") from error
    if held.is_dead():
        os.close(pidfd)
        raise ProcessLookupError(f"the process {pid} has ended")
    return held


def is_stopped(pid: int, *, proc: Path = PROC) -> bool:
    """Whether a signal or a debugger has stopped the process. False if it is gone."""
    try:
        return _stat(pid, proc)[0] in {b"T", b"t"}
    except (OSError, IndexError):
        return False


def parent(pid: int, *, proc: Path = PROC) -> int | None:
    try:
        return int(_stat(pid, proc)[1])
    except (OSError, IndexError, ValueError):
        return None


def cgroups(pid: int, *, proc: Path = PROC) -> str:
    """Return the text of its cgroup file. Raises OSError if it is gone.

    In cgroup v1, a first thread that has ended is in no cgroup, while the process lives on in its other threads. Then
    the text comes from a thread that still runs.
    """
    directory = proc / str(pid)
    if _stat(pid, proc)[:1] == [b"Z"]:
        with os.scandir(directory / "task") as tasks:
            directory = next((Path(task) for task in tasks if task.name != str(pid)), directory)
    # Read bytes: text mode would turn a carriage return in a name into a line feed.
    return os.fsdecode((directory / "cgroup").read_bytes())


@dataclasses.dataclass(frozen=True, slots=True)
class Mapping:
    """Whether a process has a file mapped; `link` opens it again.

    known: false for a process that is ending and has no memory any more, for one that may not be inspected (this needs
        CAP_SYS_PTRACE, and opening the link CAP_CHECKPOINT_RESTORE), and for one with too many mappings.
    read_bytes: how much of the list of mappings was read.
    """

    known: bool
    link: Path | None
    read_bytes: int = dataclasses.field(default=0, compare=False)


def mapping(pid: int, device_inode: tuple[int, int], *, proc: Path = PROC, max_bytes: int | None = None) -> Mapping:
    """Find where a process has the file with this device and inode mapped.

    Blocks while the process changes its mappings. max_bytes: how much of the list to read, by default MAX_MAPS_BYTES.
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
    """Return the paths that a process has mapped, as it sees them, up to MAX_MAPS_BYTES of the list.

    Return None if the process is gone or may not be inspected.
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


def mapped_inodes(pid: int, path: str, *, proc: Path = PROC) -> frozenset[tuple[int, int]] | None:
    """Return device and inode of each file that a process has mapped from this path, as it sees it.

    Return None if the process is gone or may not be inspected, and if it has too many mappings.
    """
    found: set[tuple[int, int]] = set()
    known = False
    try:
        with (proc / str(pid) / "maps").open("rb") as lines:
            for line in _bounded(lines, MAX_MAPS_BYTES):
                if line is None:
                    return None
                known = True
                fields = line.rstrip(b"\n").split(maxsplit=5)
                if len(fields) == _MAPS_FIELDS and os.fsdecode(fields[-1]) == path:
                    major, _, minor = fields[3].partition(b":")
                    found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
    except OSError:
        return None
    return frozenset(found) if known else None


def _bounded(lines: Iterable[bytes], left_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines, and None in place of those beyond the maximum."""
    for line in lines:
        left_bytes -= len(line)
        if left_bytes < 0:
            yield None
            return
        yield line


# To open a ledger that another process has mapped: inspect the process, and follow its mapping's link.
TO_TAKE_OVER: Final = {"SYS_PTRACE": 19, "CHECKPOINT_RESTORE": 40}


def missing_capabilities(wanted: dict[str, int] = TO_TAKE_OVER, *, proc: Path = PROC) -> tuple[str, ...]:
    """Return the names of the wanted capabilities that this process lacks. `wanted`: bit numbers by name."""
    status = (proc / "self/status").read_text()
    (effective,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return tuple(name for name, bit in wanted.items() if not effective >> bit & 1)


def boot_id(*, proc: Path = PROC) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
_ID: Final = r"([0-9a-f]{64})"
# The slices of a kubelet's --cgroup-root precede `kubepods`, as in kind: `kubelet-kubepods-burstable-pod…`.
_SLICES: Final = r"(?:(?:[a-zA-Z0-9_.]+-)*kubepods(?:-[a-z]+)?-)?"
_POD: Final = re.compile(rf"{_SLICES}pod{_UID}(?:\.slice)?")
_CONTAINER: Final = re.compile(rf"(?:(?:cri-containerd|crio|docker|libpod)-)?{_ID}(?:\.scope)?")
_BOTH: Final = re.compile(rf"{_SLICES}pod{_UID}\.slice:[a-z-]+:{_ID}")
# The kubelet's cgroups for pods and their parents. In a cgroup namespace, the pod's own name may come first.
_POD_PARENT: Final = re.compile(r"(?:[a-zA-Z0-9_.]+-)*kubepods(?:[-.].*)?|pod[0-9a-f_-]{32,36}(?:\..*)?", re.DOTALL)

IN_NO_POD: Final = Refusal("this process is not in a container of a pod")
IN_SEVERAL: Final = Refusal("this process is in the cgroups of several containers at once")
NOT_UNDERSTOOD: Final = Refusal("this process is in a pod's cgroup, but the agent does not recognize its container's")


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod, by pod UID and container id."""

    pod_uid: str
    container_id: str


def container_of(text: str) -> Container | Refusal:
    """Return the container of a process with this text of /proc/PID/cgroup, or a refusal.

    Names of cgroups may contain every character except `/` and line feed, so lines end at line feeds only.

    Kubelet and container runtime name cgroups in a few ways (v1 and v2, cgroupfs and systemd drivers), always with the
    pod's UID and then the container's id:

        /kubepods/burstable/podUID/ID
        /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
        /kubepods-burstable-podUID.slice:cri-containerd:ID
        /kubepods.slice/kubepods-podUID.slice/crio-ID.scope/container

    Outer cgroups come in front: the container that a kind node is, or `..` in a cgroup namespace. A container can
    create cgroups with any name below its own, so only the outermost pod counts. All hierarchies of cgroup v1 must
    agree; those without a pod do not matter. A process below `kubepods` that matches none of these forms is refused, so
    that it is never mistaken for a process of the host.
    """
    # `splitlines` would also split at vertical tabs and eight other characters that cgroup names may contain.
    paths = [line.split(":", 2)[-1] for line in text.split("\n")]
    containers = {container for path in paths if (container := _from_path(path)) is not None}
    if len(containers) > 1:
        return IN_SEVERAL
    if containers:
        return containers.pop()
    below_pods = any(_POD_PARENT.fullmatch(component) for path in paths for component in path.split("/"))
    return NOT_UNDERSTOOD if below_pods else IN_NO_POD


def pod_of(component: str) -> str | None:
    pod = _POD.fullmatch(component)
    return pod[1].replace("_", "-") if pod else None


def container_id_of(component: str) -> str | None:
    container = _CONTAINER.fullmatch(component)
    return container[1] if container else None


def _from_path(path: str) -> Container | None:
    components = path.split("/")
    for position, component in enumerate(components):
        both = _BOTH.fullmatch(component)
        if both:
            return Container(both[1].replace("_", "-"), both[2])
        pod = pod_of(component)
        if pod is not None:
            below = components[position + 1] if position + 1 < len(components) else ""
            container_id = container_id_of(below)
            return Container(pod, container_id) if container_id is not None else None
    return None
