"""An MPS daemon's files, its clients' limits, and the steps that start and stop it. Pure.

MPS does not know pods: its limits hold for each client process. https://docs.nvidia.com/deploy/mps/
A daemon for a single GPU gets that GPU in CUDA_VISIBLE_DEVICES, so that daemons cannot claim each other's GPUs, and the
only ordinal in its limits is 0. A daemon for all GPUs of a resource, as in NVIDIA's plugin, sees all GPUs of the node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from gpushare import contract, errors
from gpushare.modes import hardware_gpu

DIRECTORY_MODE: Final = 0o755
SHM_MODE: Final = 0o1777  # clients that are not root use it too
READY: Final = ".ready"
MAX_SERVERS: Final = 8  # a daemon has one at a time
# All environment variables of the daemon, and of the program that starts it and sends it commands.
VARIABLES: Final = frozenset({contract.ENV_MPS_PIPE, "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"})
_MIB: Final = 1 << 20


class LimitError(errors.GpushareError):
    """A GPU is shared by more replicas than it takes clients."""


def check_replicas(replicas: int, compute_capability: tuple[int, int], *, as_nvidia: bool = False) -> None:
    """Raise LimitError if a GPU cannot be shared by this many replicas."""
    most = hardware_gpu.max_mps_clients(compute_capability, as_nvidia=as_nvidia)
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
    memory = {} if mib is None else {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={mib}M"}
    return {contract.ENV_MPS_PERCENT: str(thread_percent(replicas, shares=held)), **memory}


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonFiles:
    """A daemon's files below `mpsRoot`. name: a GPU's UUID, or a resource if one daemon serves all its GPUs."""

    root: Path
    name: str

    @property
    def directory(self) -> Path:
        return self.root / self.name

    @property
    def pipe(self) -> Path:
        """A link to the daemon's pipe directory, `pipe.TIME`: each daemon starts in a new one.

        The daemon's environment names the link, by which earlier releases find the daemon too.
        """
        return self.directory / "pipe"

    @property
    def clients(self) -> Path:
        """A link to the same directory, by which containers mount it; it is missing while a daemon starts."""
        return self.directory / "clients"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def control_log(self) -> Path:
        return self.log / "control.log"

    @property
    def started(self) -> Path:
        """A file that exists while the daemon's limits are set; it has the number of SM partitions, if any."""
        return self.directory / ".started"

    @property
    def shares(self) -> Path:
        """The directory with a directory for each share that has an SM partition; containers read its name there."""
        return self.directory / "shares"

    @property
    def pid_file(self) -> Path:
        return self.pipe / "nvidia-cuda-mps-control.pid"

    @property
    def ready(self) -> Path:
        """A file that exists while all daemons of the node run."""
        return self.root / READY

    @property
    def shm(self) -> Path:
        return self.root / "shm"


@dataclasses.dataclass(frozen=True, slots=True)
class MpsGpu:
    """A GPU with `replicas` shares, of which a process can use `at_once`. memory_bytes: 0 if unknown."""

    uuid: str
    index: int
    memory_bytes: int
    replicas: int
    at_once: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """A daemon to run. alone: whether it sees only these GPUs, not all of the node.

    for_shares: its clients have shares by annotation. The library and the arbiter keep their limits, so the daemon has
    none. Its server serves all users, and the GPU's compute mode stays as it is. partitions: into how many equal static
    SM partitions it cuts its GPU; 0: none.
    """

    name: str
    gpus: tuple[MpsGpu, ...]
    alone: bool = True
    for_shares: bool = False
    partitions: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class SetComputeMode:
    """Set whether GPUs take one process (the MPS server) or any number."""

    exclusive: bool
    uuids: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Create a directory that the daemon or its clients expect. is_mounted: whether containers mount it."""

    path: Path
    mode: int = DIRECTORY_MODE
    is_mounted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class RunDaemon:
    """Start the daemon in the background, in a new pipe directory, with exactly this environment.

    multi_user: its server serves all users. static: its clients run in static SM partitions.
    """

    environment: Mapping[str, str]
    multi_user: bool = False
    static: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class CutPartitions:
    """Have a daemon without clients cut a GPU into this many equal SM partitions, unless it is cut already."""

    uuid: str
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """Send commands to the daemon. stopping: whether it may be gone already."""

    lines: tuple[str, ...]
    stopping: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Touch:
    """Create a marker file, with this text."""

    path: Path
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file or directory."""

    path: Path


@dataclasses.dataclass(frozen=True, slots=True)
class FollowLog:
    """Copy the daemon's log to the agent's, or stop doing so."""

    path: Path
    stop: bool = False


Step = SetComputeMode | MakeDirectory | RunDaemon | CutPartitions | Command | Touch | Remove | FollowLog


def environment(spec: Spec, files: DaemonFiles) -> dict[str, str]:
    variables = {contract.ENV_MPS_PIPE: str(files.pipe), "CUDA_MPS_LOG_DIRECTORY": str(files.log)}
    if spec.alone:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in spec.gpus)
    return variables


def limit_commands(spec: Spec, servers: Iterable[int] = ()) -> tuple[str, ...]:
    """Return the commands that set a client's limits: memory per GPU, and one multiprocessor percentage for all.

    servers: the PIDs of running ones, which keep their limits when the defaults change; of many, only some are limited.
    """
    if spec.for_shares:
        running = (f"set_active_thread_percentage {pid} 100" for pid in sorted(servers)[:MAX_SERVERS])
        return ("set_default_active_thread_percentage 100", *running)
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
        *_compute_modes(spec, exclusive=True),
        MakeDirectory(files.log),
        *((MakeDirectory(files.shm, SHM_MODE, is_mounted=True),) if spec.for_shares else ()),
        *((MakeDirectory(files.shares, is_mounted=True),) if spec.partitions else ()),
        RunDaemon(environment(spec, files), multi_user=spec.for_shares, static=spec.partitions > 0),
        *((CutPartitions(spec.name, spec.partitions),) if spec.partitions else ()),
        Command(limit_commands(spec)),
        Touch(files.started, str(spec.partitions or "")),
        FollowLog(files.control_log),
    )


def stop(spec: Spec, files: DaemonFiles) -> tuple[Step, ...]:
    """Return the steps that stop the daemon, and clean up after a partial start."""
    return (
        Command(("quit",), stopping=True),
        FollowLog(files.control_log, stop=True),
        *_compute_modes(spec, exclusive=False),
        Remove(files.started),
        *((Remove(files.shares),) if spec.for_shares else ()),
        Remove(files.log),
    )


def for_shares(uuid: str, partitions: int = 0) -> Spec:
    """Return the daemon of a GPU whose shares have the isolation mps."""
    gpu = MpsGpu(uuid, index=0, memory_bytes=0, replicas=1)
    return Spec(uuid, (gpu,), for_shares=True, partitions=partitions)


def _compute_modes(spec: Spec, *, exclusive: bool) -> tuple[Step, ...]:
    return () if spec.for_shares else (SetComputeMode(exclusive, tuple(gpu.uuid for gpu in spec.gpus)),)


def pids(answer: str) -> frozenset[int]:
    """Return the PIDs in a daemon's answer, one a line. Raises ValueError for anything else."""
    return frozenset(int(line) for line in answer.splitlines() if line.strip())
