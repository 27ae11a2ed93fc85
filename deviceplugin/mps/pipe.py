"""A daemon's pipe directory, where its clients' containers can write, and the daemon's process.

Root in a container can replace each file there: by a link to another daemon's, by a pipe that nobody writes to, by the
PID of another process. Nothing there is followed, waited for or believed. A daemon would follow links when it starts,
so it starts in a new directory, which containers can mount only once it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import KernelProcess
from deviceplugin.mps import steps
from gpushare import contract

MAX_PID_BYTES: Final = 32
MAX_ENVIRONMENT_BYTES: Final = 1 << 17
MAX_FORMER: Final = 8  # directories of earlier daemons that are kept
MAX_LINKED: Final = 32  # files; a daemon has a few, a client may have added any number
MAX_AT_ONCE: Final = 1000
REMOVAL_SECONDS: Final = 5.0
# The kernel's name of both control daemon and server: it keeps 15 characters.
COMM: Final = b"nvidia-cuda-mps-control"[:15]
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_CONTROL: Final = ("control", "control_lock", "control_privileged")  # what the program opens to send a command


_SELINUX: Final = Path("/sys/fs/selinux")
_SELINUX_LABEL: Final = b"system_u:object_r:container_file_t:s0\0"


@contextlib.contextmanager
def linked(directory: Path) -> Iterator[Path]:
    """Yield a directory that only root can enter, with hard links to the files that commands go through. Blocking.

    A client can replace a file by a symbolic link to another daemon's at any time. A hard link is to one file forever,
    and is checked where no client can replace it. Raises OSError, also for a symbolic link.
    """
    # The name is short because a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="c.", dir=directory.parent) as private:
        for name in _CONTROL:
            own = Path(private, name)
            with contextlib.suppress(FileNotFoundError):
                os.link(directory / name, own, follow_symlinks=False)
                if own.is_symlink():
                    raise OSError(
                        f"{directory / name} is a link, which only a client can have put there: end the GPU's clients"
                    )
        yield Path(private)


def make_directory(path: Path, mode: int, *, is_mounted: bool) -> None:
    """Create a directory. is_mounted: whether containers mount it, for which SELinux has a label. Blocking."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if is_mounted and _SELINUX.exists():
        os.setxattr(path, "security.selinux", _SELINUX_LABEL)


def retire(files: steps.DaemonFiles) -> None:
    """Move the pipe directory of a daemon that has ended out of the way of the next one. Blocking.

    Running containers keep it mounted. It is not emptied: their programs could add files faster than that.
    """
    if os.path.lexists(files.clients):
        _move_to_former(files, files.pipe)
        _move_to_former(files, files.clients)
    else:
        _remove_tree(files.pipe)


def publish(files: steps.DaemonFiles) -> None:
    """Let containers mount the pipe directory of a daemon that runs. Blocking.

    The daemon's files are linked into the directories of earlier daemons too, so that programs which start later in
    running containers find it.
    """
    if not files.clients.is_symlink():
        _move_to_former(files, files.clients)
        files.clients.symlink_to(files.pipe.name)
    former = sorted(files.former.glob("*"))
    for directory in former[-MAX_FORMER:]:
        _link(files.pipe, directory)
    for directory in former[:-MAX_FORMER]:
        _remove_tree(directory)


def _move_to_former(files: steps.DaemonFiles, path: Path) -> None:
    """Keep a directory that containers may have mounted. Remove a link."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():  # a container runtime may have made a directory in place of the missing link
        files.former.mkdir(mode=0o700, exist_ok=True)
        path.rename(files.former / str(time.time_ns()))


def _remove_tree(top: Path) -> None:
    """Remove a directory and what is in it, as far as that is possible while clients may still write there.

    A recursion would end in directories that a client has nested too deep, so these are moved up.
    """
    deadline, count = time.monotonic() + REMOVAL_SECONDS, 0
    with contextlib.suppress(OSError):
        descriptor = os.open(top, _DIRECTORY)
        try:
            while time.monotonic() < deadline and (names := os.listdir(descriptor)):  # noqa: PTH208 - not by its path
                for name in names[:MAX_AT_ONCE]:
                    try:
                        os.unlink(name, dir_fd=descriptor)
                    except IsADirectoryError:
                        inner = os.open(name, _DIRECTORY, dir_fd=descriptor)
                        try:
                            for nested in os.listdir(inner)[:MAX_AT_ONCE]:  # noqa: PTH208
                                count += 1
                                os.rename(nested, f"{time.time_ns()}.{count}", src_dir_fd=inner, dst_dir_fd=descriptor)
                        finally:
                            os.close(inner)
                        with contextlib.suppress(OSError):  # it has more
                            os.rmdir(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        top.rmdir()


def _link(pipe: Path, directory: Path) -> None:
    """Link the files of a pipe directory into one in which clients write at the same time."""
    descriptor = os.open(directory, _DIRECTORY)
    try:
        with os.scandir(pipe) as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_LINKED)]
        for name in names:
            with contextlib.suppress(OSError):  # a client has put a directory there, or was faster
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)
                os.link(pipe / name, name, dst_dir_fd=descriptor, follow_symlinks=False)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, or what a client has put in its place. Blocking."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        _remove_tree(path)


def may_run(files: steps.DaemonFiles, starter: int | None) -> bool:
    """Whether the daemon runs, or may run as far as its PID file and the keeper tell. Blocking."""
    try:
        process = find_process(files, starter)
    except ProcessLookupError:
        return False
    if process is None:
        return os.path.lexists(files.pid_file)
    os.close(process.pidfd)
    return True


def find_process(
    files: steps.DaemonFiles, starter: int | None, *, proc: Path = kernel_process.PROC
) -> KernelProcess | None:
    """Return the daemon that has this pipe, or None if that is unknown. Raises ProcessLookupError if none runs.

    starter: the PID of the process that starts daemons, None if it does not answer. The caller closes the pidfd.

    A killed daemon leaves its PID file behind, next to its pipe, and its PID may belong to another process by now.
    Clients can write there too, because their containers mount that directory. So a process counts only if it runs
    where daemons are started, in the agent's or the keeper's container, and has this very pipe in its environment.
    """
    pid = _read_pid(files.pid_file)
    if pid is None or starter is None:
        return None
    identified = kernel_process.with_start(pid, proc=proc)
    process = kernel_process.find(*identified, proc=proc) if identified is not None else None
    if process is None:
        raise ProcessLookupError(f"process {pid} has ended")
    # The pidfd is open already, so the PID cannot pass to another process while this one is inspected.
    try:
        own, starters = (kernel_process.container_of(kernel_process.cgroups(one, proc=proc)) for one in (pid, starter))
        is_daemon = own == starters and _has_pipe(proc / str(pid), files.pipe)
    except PermissionError:
        os.close(process.pidfd)
        return None
    except OSError:
        is_daemon = False
    if not is_daemon:
        os.close(process.pidfd)
        raise ProcessLookupError(f"process {pid} is no MPS daemon with the pipe {files.pipe}")
    return process


async def ended(pidfd: int, timeout_seconds: float) -> bool:
    """Wait for the end of a daemon, at most this long. Return whether it has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(timeout_seconds):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
    # A daemon's parent is the first process of its container, which may be this one: reap it.
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - it does not wait
    return True


def _has_pipe(directory: Path, pipe: Path) -> bool:
    with (directory / "environ").open("rb") as file:
        variables = file.read(MAX_ENVIRONMENT_BYTES).split(b"\0")
    is_control = (directory / "comm").read_bytes().strip() == COMM
    return is_control and os.fsencode(f"{contract.ENV_MPS_PIPE}={pipe}") in variables


def _read_pid(path: Path) -> int | None:
    """Return the number in a PID file, which clients can replace by anything; None if it has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in {0, os.geteuid()}:
            return None
        return int(os.read(descriptor, MAX_PID_BYTES))
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
