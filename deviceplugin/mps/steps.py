"""Starting and stopping an MPS daemon, as lists of steps. Pure.

A daemon for a single GPU gets that GPU in CUDA_VISIBLE_DEVICES, so that daemons cannot claim each other's GPUs, and the
only ordinal in its limits is 0. A daemon for all GPUs of a resource, as in NVIDIA's plugin, sees all GPUs of the node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deviceplugin.mps import limits
from deviceplugin.mps.daemon_files import PIPE_VARIABLE, PROGRAM, DaemonFiles

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
    """Return the environment of the daemon and of the program that sends it commands."""
    variables = {PIPE_VARIABLE: str(files.pipe), "CUDA_MPS_LOG_DIRECTORY": str(files.log)}
    if spec.alone:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in spec.gpus)
    return variables


def limit_commands(spec: Spec) -> tuple[str, ...]:
    """Return the commands that set a client's limits: memory per GPU, and one multiprocessor percentage for all."""
    commands = []
    for position, gpu in enumerate(spec.gpus):
        mib = limits.memory_mib(gpu.memory_bytes, replicas=gpu.replicas, shares=gpu.at_once)
        if mib is not None:
            ordinal = position if spec.alone else gpu.index
            commands.append(f"set_default_device_pinned_mem_limit {ordinal} {mib}M")
    # MPS has no percentage per GPU: for GPUs that are shared differently, this is the average.
    replicas = sum(gpu.replicas for gpu in spec.gpus) // len(spec.gpus)
    at_once = min(gpu.at_once for gpu in spec.gpus)
    return (*commands, f"set_default_active_thread_percentage {limits.thread_percent(replicas, shares=at_once)}")


def start(spec: Spec, files: DaemonFiles) -> tuple[Step, ...]:
    """Return the steps that start the daemon with its limits."""
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
