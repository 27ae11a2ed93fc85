"""The limits of MPS clients: how much of a GPU each replica gets, and how many clients a GPU takes. Pure.

MPS does not know pods: its limits hold for each client process.
https://docs.nvidia.com/deploy/mps/

The files of an MPS daemon, below the root that the configuration names (`mpsRoot`), and the PID in one of them.

The daemon writes its PID next to its pipe. Its clients can write there too, because their containers mount the pipe
directory, and their files outlive them. So the PID file is opened without following links and without blocking. The
process counts only if it runs where daemons are started, in the agent's or the keeper's container, and has this very
pipe in its environment.

Starting and stopping an MPS daemon, as lists of steps. Pure.

A daemon for a single GPU gets that GPU in CUDA_VISIBLE_DEVICES, so that daemons cannot claim each other's GPUs, and the
only ordinal in its limits is 0. A daemon for all GPUs of a resource, as in NVIDIA's plugin, sees all GPUs of the node.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deviceplugin.host import identity, kernel_process
from deviceplugin.host.kernel_process import KernelProcess
from gpushare import errors
from gpushare.modes import mps_clients

_MIB: Final = 1 << 20
_THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class LimitError(errors.GpushareError):
    """A GPU is shared by more replicas than it takes clients."""


def check_replicas(replicas: int, compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> None:
    """Raise LimitError if a GPU cannot be shared by this many replicas."""
    most = mps_clients.max_clients(compute_capability, as_nvidia=as_nvidia)
    if replicas > most:
        raise LimitError(f"maximum allowed replicas exceeded: {replicas} > {most}: lower replicas under sharing.mps")


def memory_mib(total_bytes: int, *, replicas: int, shares: int = 1) -> int | None:
    """Return the memory limit of `shares` out of `replicas`, in whole MiB; None if the GPU's memory is unknown."""
    return shares * (total_bytes // replicas // _MIB) if total_bytes > 0 else None


def thread_percent(replicas: int, *, shares: int = 1) -> int:
    """Return the part of the multiprocessors for `shares` out of `replicas`, in whole per cent, at least 1."""
    return max(1, min(100, 100 * shares // replicas))


def container_environment(total_bytes: int, *, replicas: int, held: int) -> dict[str, str]:
    """Return the environment variables that limit a container with this many replicas.

    The daemon's limits are for every process, and a process can only tighten them. So the daemon allows what the
    largest container can have.
    """
    mib = memory_mib(total_bytes, replicas=replicas, shares=held)
    memory = {} if mib is None else {_MEMORY: f"0={mib}M"}
    return {_THREADS: str(thread_percent(replicas, shares=held)), **memory}


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
    return identity.parse(kernel_process.cgroups(pid, proc=proc))


def _has_pipe(pid: int, pipe: Path, proc: Path) -> bool:
    directory = proc / str(pid)
    with (directory / "environ").open("rb") as file:
        variables = file.read(MAX_ENVIRONMENT_BYTES).split(b"\0")
    name = (directory / "comm").read_bytes().strip()
    return name == COMM.encode() and os.fsencode(f"{PIPE_VARIABLE}={pipe}") in variables


DIRECTORY_MODE: Final = 0o755


@dataclasses.dataclass(frozen=True, slots=True)
class MpsGpu:
    """A GPU of a daemon. memory_bytes: 0 if unknown.

    replicas: the number of its shares. at_once: how many of them one process can use.
    """

    uuid: str
    index: int
    memory_bytes: int
    replicas: int
    at_once: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """A daemon to run. alone: whether it sees only these GPUs, not all of the node."""

    name: str
    gpus: tuple[MpsGpu, ...]
    alone: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class SetComputeMode:
    """Set whether GPUs take one process (the MPS server) or any number."""

    exclusive: bool
    uuids: tuple[str, ...]

    def __str__(self) -> str:
        mode = "EXCLUSIVE_PROCESS" if self.exclusive else "DEFAULT"
        return f"set compute mode {mode}" + (f" on {' and '.join(self.uuids)}" if self.uuids else "")


@dataclasses.dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Create a directory that the daemon expects."""

    path: Path

    def __str__(self) -> str:
        return f"create {self.path} mode {DIRECTORY_MODE:04o}"


@dataclasses.dataclass(frozen=True, slots=True)
class RunDaemon:
    """Start the daemon in the background, with exactly this environment."""

    environment: Mapping[str, str]

    def __str__(self) -> str:
        return f"run {PROGRAM} -d with {' and '.join(self.environment)} only"


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """Send commands to the daemon. stopping: whether it may be gone already."""

    lines: tuple[str, ...]
    stopping: bool = False

    def __str__(self) -> str:
        return f"control command {self.lines[0]}" if self.stopping else "control commands"


@dataclasses.dataclass(frozen=True, slots=True)
class Touch:
    """Create a marker file. last: wait with it until all daemons of the node run."""

    path: Path
    last: bool = False

    def __str__(self) -> str:
        return f"touch {self.path}{' (after all daemons)' if self.last else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file or directory."""

    path: Path

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclasses.dataclass(frozen=True, slots=True)
class FollowLog:
    """Copy the daemon's log to the agent's, or stop doing so."""

    path: Path
    stop: bool = False

    def __str__(self) -> str:
        return "stop tail" if self.stop else f"tail {self.path.parent.name}/{self.path.name}"


Step = SetComputeMode | MakeDirectory | RunDaemon | Command | Touch | Remove | FollowLog


# All environment variables of the program.
VARIABLES: Final = frozenset({PIPE_VARIABLE, "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"})


def environment(spec: Spec, files: DaemonFiles) -> dict[str, str]:
    variables = {PIPE_VARIABLE: str(files.pipe), "CUDA_MPS_LOG_DIRECTORY": str(files.log)}
    if spec.alone:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in spec.gpus)
    return variables


def limit_commands(spec: Spec) -> tuple[str, ...]:
    """Return the commands that set a client's limits: memory per GPU, and one multiprocessor percentage for all."""
    commands = []
    for position, gpu in enumerate(spec.gpus):
        mib = memory_mib(gpu.memory_bytes, replicas=gpu.replicas, shares=gpu.at_once)
        if mib is not None:
            ordinal = position if spec.alone else gpu.index
            commands.append(f"set_default_device_pinned_mem_limit {ordinal} {mib}M")
    # MPS has no percentage per GPU: for GPUs that are shared differently, this is the average.
    replicas = sum(gpu.replicas for gpu in spec.gpus) // len(spec.gpus)
    at_once = min(gpu.at_once for gpu in spec.gpus)
    return (*commands, f"set_default_active_thread_percentage {thread_percent(replicas, shares=at_once)}")


def start(spec: Spec, files: DaemonFiles) -> tuple[Step, ...]:
    return (
        SetComputeMode(True, tuple(gpu.uuid for gpu in spec.gpus)),
        MakeDirectory(files.pipe),
        MakeDirectory(files.log),
        RunDaemon(environment(spec, files)),
        Command(limit_commands(spec)),
        Touch(files.started),
        FollowLog(files.log / "control.log"),
    )


def stop(spec: Spec, files: DaemonFiles) -> tuple[Step, ...]:
    """Return the steps that stop the daemon, and clean up after a partial start."""
    return (
        Command(("quit",), stopping=True),
        FollowLog(files.log / "control.log", stop=True),
        SetComputeMode(False, tuple(gpu.uuid for gpu in spec.gpus)),
        Remove(files.started),
        Remove(files.log),
    )
