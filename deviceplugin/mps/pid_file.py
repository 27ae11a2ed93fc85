"""The process of an MPS daemon, by the pid that it writes next to its pipe.

The daemon's clients can write there too: their containers have its pipe directory, and what they leave there outlives
them. So the file is read without following links and without waiting. Its process counts only if it is where daemons
run, in the agent's or the keeper's container, and has this very pipe in its environment.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from deviceplugin.host import identity, kernel_process
from deviceplugin.host.kernel_process import KernelProcess
from deviceplugin.mps import steps
from deviceplugin.mps.places import Places

MAX_PID_BYTES: Final = 32
MAX_ENVIRONMENT_BYTES: Final = 1 << 17


def find(places: Places, starter: int | None, *, proc: Path = kernel_process.PROC) -> KernelProcess | None:
    """The daemon that has this pipe; None where that is unknown. Raises ProcessLookupError if there is no such process.

    starter: the pid of the process that starts daemons, None if it does not answer. A daemon that was killed leaves its
    file, and its pid may be another process's by now. The caller closes the pidfd.
    """
    pid = written_pid(places.pid_file)
    if pid is None or starter is None:
        return None
    who = kernel_process.with_start(pid, proc=proc)
    process = kernel_process.find(*who, proc=proc) if who is not None else None
    if process is None:
        raise ProcessLookupError(f"process {pid} has ended")
    # Opened before it is looked into: if it ends between the two, no other process is taken for it.
    try:
        is_daemon = _place(pid, proc) == _place(starter, proc) and _has_pipe(pid, places.pipe, proc)
    except PermissionError:
        os.close(process.pidfd)
        return None
    except OSError:
        is_daemon = False
    if not is_daemon:
        os.close(process.pidfd)
        raise ProcessLookupError(f"process {pid} is no MPS daemon with the pipe {places.pipe}")
    return process


def written_pid(path: Path) -> int | None:
    """The number in a file that its daemon's clients can replace by anything; None if it holds none."""
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


def _place(pid: int, proc: Path) -> object:
    return identity.parse(kernel_process.cgroups(pid, proc=proc))


def _has_pipe(pid: int, pipe: Path, proc: Path) -> bool:
    directory = proc / str(pid)
    with (directory / "environ").open("rb") as file:
        variables = file.read(MAX_ENVIRONMENT_BYTES).split(b"\0")
    name = (directory / "comm").read_bytes().strip()
    return name == steps.COMM.encode() and os.fsencode(f"{steps.PIPE_VARIABLE}={pipe}") in variables
