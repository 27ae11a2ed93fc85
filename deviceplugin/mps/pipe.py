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
from collections.abc import Iterable, Iterator
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
MAX_REMOVED: Final = 1_000_000  # files at once; their names are never all in memory
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
    _admit(path, mode, is_mounted=is_mounted)


def _admit(path: Path, mode: int, *, is_mounted: bool) -> None:
    path.chmod(mode)
    if is_mounted and _SELINUX.exists():
        os.setxattr(path, "security.selinux", _SELINUX_LABEL)


def make_pipe(files: steps.DaemonFiles) -> None:
    """Create the pipe directory of a daemon that is about to start. Call `retire` before. Blocking.

    Its name has never been used, so a container that is created meanwhile cannot mount it by an earlier one.
    """
    own = _unused(files)
    own.mkdir(parents=True)
    _admit(own, steps.DIRECTORY_MODE, is_mounted=True)
    files.pipe.symlink_to(own.name)


def retire(files: steps.DaemonFiles) -> None:
    """Make way for the next daemon. Blocking.

    Running containers keep the pipe directory of the daemon that has ended mounted. It is not emptied: their programs
    could add files faster than that.
    """
    if files.pipe.is_symlink() and not files.clients.is_symlink():
        never_published = files.directory / files.pipe.readlink()
        files.pipe.unlink()
        _remove_tree(never_published, time.monotonic() + REMOVAL_SECONDS)
    # In this order, so that a directory which was published never looks as if it had not been.
    _set_aside(files, files.pipe)
    _set_aside(files, files.clients)
    _remove_all(_former(files)[:-MAX_FORMER])


def publish(files: steps.DaemonFiles) -> None:
    """Let containers mount the pipe directory of a daemon that runs. Blocking.

    The daemon's files are linked into the directories of earlier daemons too, so that programs which start later in
    running containers find it.
    """
    current = _current(files)
    if not (files.clients.is_symlink() and str(files.clients.readlink()) == current):
        _set_aside(files, files.clients)
        files.clients.symlink_to(current)
    for directory in _former(files)[-MAX_FORMER:]:
        _link(files.pipe, directory)


def remove_former(files: steps.DaemonFiles) -> None:
    """Remove the pipe directories of all earlier daemons, when no container has them mounted any more. Blocking."""
    _remove_all(_former(files))


def _current(files: steps.DaemonFiles) -> str:
    """Return the name of the daemon's pipe directory. Up to release 0.3 that was `pipe` itself."""
    return str(files.pipe.readlink()) if files.pipe.is_symlink() else files.pipe.name


def _former(files: steps.DaemonFiles) -> list[Path]:
    """Return the pipe directories of earlier daemons, the oldest first."""
    current = _current(files)
    return sorted(path for path in files.directory.glob(f"{files.pipe.name}.*") if path.name != current)


def _unused(files: steps.DaemonFiles) -> Path:
    return files.pipe.with_name(f"{files.pipe.name}.{time.time_ns()}")


def _set_aside(files: steps.DaemonFiles, path: Path) -> None:
    """Keep a directory that containers may have mounted. Remove a link."""
    if path.is_dir() and not path.is_symlink():
        # `pipe` is of release 0.3; a container runtime may have made `clients` in place of the missing link.
        path.rename(_unused(files))
    else:
        path.unlink(missing_ok=True)


def _remove_all(directories: Iterable[Path]) -> None:
    deadline = time.monotonic() + REMOVAL_SECONDS
    for directory in directories:
        _remove_tree(directory, deadline)


def _remove_tree(top: Path, deadline: float) -> None:
    """Remove a directory and what is in it, as far as that is possible while clients may still write there.

    A client can fill it with more names than fit in memory, and nest directories too deep for a recursion.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(top, _DIRECTORY)
        try:
            left = MAX_REMOVED
            while removed := _remove_entries(descriptor, left, deadline):
                left -= removed
        finally:
            os.close(descriptor)
        top.rmdir()


def _remove_entries(directory: int, most: int, deadline: float) -> int:
    """Remove the entries of a directory once, and move up what directories in it have. Return how many it did."""
    done = 0
    with os.scandir(directory) as entries:
        for entry in itertools.islice(entries, most):
            if time.monotonic() > deadline:
                break
            with contextlib.suppress(OSError):
                try:
                    os.unlink(entry.name, dir_fd=directory)
                    done += 1
                except IsADirectoryError:
                    done += _move_up(entry.name, directory, most - done, deadline)
                    os.rmdir(entry.name, dir_fd=directory)  # fails if it has more
                    done += 1
    return done


def _move_up(name: str, directory: int, most: int, deadline: float) -> int:
    done, inner = 0, os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(inner) as entries:
            for entry in itertools.islice(entries, most):
                if time.monotonic() > deadline:
                    break
                os.rename(entry.name, f"{time.time_ns()}.{done}", src_dir_fd=inner, dst_dir_fd=directory)
                done += 1
    finally:
        os.close(inner)
    return done


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
        _remove_tree(path, time.monotonic() + REMOVAL_SECONDS)


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
