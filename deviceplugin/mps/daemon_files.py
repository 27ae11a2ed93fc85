"""The files of an MPS daemon, below the root that the configuration names (`mpsRoot`), and the PID in one of them.

The daemon writes its PID next to its pipe. Its clients can write there too, because their containers mount the pipe
directory, and their files outlive them. So the PID file is opened without following links and without blocking. The
process counts only if it runs where daemons are started, in the agent's or the keeper's container, and has this very
pipe in its environment.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path
from typing import Final

from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import KernelProcess

SHM: Final = "shm"
READY: Final = ".ready"
PROGRAM: Final = "nvidia-cuda-mps-control"
# The kernel's name of both control daemon and server: it keeps 15 characters.
COMM: Final = PROGRAM[:15]
PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
MAX_PID_BYTES: Final = 32
MAX_ENVIRONMENT_BYTES: Final = 1 << 17


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonFiles:
    """The paths of a daemon's files. name: a GPU's UUID, or a resource if one daemon serves all its GPUs."""

    root: Path
    name: str

    @property
    def directory(self) -> Path:
        return self.root / self.name

    @property
    def pipe(self) -> Path:
        """The directory that clients connect through."""
        return self.directory / "pipe"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def started(self) -> Path:
        """A file that exists while the daemon's limits are set."""
        return self.directory / ".started"

    @property
    def pid_file(self) -> Path:
        return self.pipe / "nvidia-cuda-mps-control.pid"

    @property
    def ready(self) -> Path:
        """A file that exists while all daemons of the node run."""
        return self.root / READY

    @property
    def shm(self) -> Path:
        """The shared memory of all daemons and clients."""
        return self.root / SHM


def find_process(files: DaemonFiles, starter: int | None, *, proc: Path = kernel_process.PROC) -> KernelProcess | None:
    """Return the daemon that has this pipe, or None if that is unknown. Raises ProcessLookupError if none runs.

    starter: the PID of the process that starts daemons, None if it does not answer. A killed daemon leaves its PID
    file behind, and its PID may belong to another process by now. The caller closes the pidfd.
    """
    pid = read_pid(files.pid_file)
    if pid is None or starter is None:
        return None
    identified = kernel_process.with_start(pid, proc=proc)
    process = kernel_process.find(*identified, proc=proc) if identified is not None else None
    if process is None:
        raise ProcessLookupError(f"process {pid} has ended")
    # The pidfd is open already, so the PID cannot pass to another process while this one is inspected.
    try:
        is_daemon = _container(pid, proc) == _container(starter, proc) and _has_pipe(pid, files.pipe, proc)
    except PermissionError:
        os.close(process.pidfd)
        return None
    except OSError:
        is_daemon = False
    if not is_daemon:
        os.close(process.pidfd)
        raise ProcessLookupError(f"process {pid} is no MPS daemon with the pipe {files.pipe}")
    return process


def read_pid(path: Path) -> int | None:
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


def _container(pid: int, proc: Path) -> object:
    return kernel_process.container_of(kernel_process.cgroups(pid, proc=proc))


def _has_pipe(pid: int, pipe: Path, proc: Path) -> bool:
    directory = proc / str(pid)
    with (directory / "environ").open("rb") as file:
        variables = file.read(MAX_ENVIRONMENT_BYTES).split(b"\0")
    name = (directory / "comm").read_bytes().strip()
    return name == COMM.encode() and os.fsencode(f"{PIPE_VARIABLE}={pipe}") in variables
