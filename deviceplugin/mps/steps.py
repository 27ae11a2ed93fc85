"""Starting and stopping an MPS daemon, as lists of steps. Pure.

A daemon of its own for each GPU is told that GPU by CUDA_VISIBLE_DEVICES, so that daemons cannot claim each other's,
and the only ordinal in its limits is 0. One daemon for all GPUs of a resource, as NVIDIA's, sees all of the node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deviceplugin.mps import limits
from deviceplugin.mps.places import Places

DIRECTORY_MODE: Final = 0o755
PROGRAM: Final = "nvidia-cuda-mps-control"
# How the kernel calls both control and server: it keeps 15 characters.
COMM: Final = PROGRAM[:15]


@dataclasses.dataclass(frozen=True, slots=True)
class MpsGpu:
    """A GPU that a daemon has. memory_bytes: 0 if not known.

    replicas: how many shares there are of it. at_once: how many of them one process may use.
    """

    uuid: str
    index: int
    memory_bytes: int
    replicas: int
    at_once: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Spec:
    """A daemon to have. alone: it has only these GPUs; otherwise it sees all that there are."""

    name: str
    gpus: tuple[MpsGpu, ...]
    alone: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class SetComputeMode:
    """Whether GPUs take one process (which MPS is) or any number."""

    exclusive: bool
    uuids: tuple[str, ...]

    def __str__(self) -> str:
        mode = "EXCLUSIVE_PROCESS" if self.exclusive else "DEFAULT"
        return f"set compute mode {mode}" + (f" on {' and '.join(self.uuids)}" if self.uuids else "")


@dataclasses.dataclass(frozen=True, slots=True)
class MakeDirectory:
    """A directory that the daemon expects."""

    path: Path

    def __str__(self) -> str:
        return f"create {self.path} mode {DIRECTORY_MODE:04o}"


@dataclasses.dataclass(frozen=True, slots=True)
class RunDaemon:
    """Start the daemon in the background, with this environment and no other."""

    environment: Mapping[str, str]

    def __str__(self) -> str:
        return f"run {PROGRAM} -d with {' and '.join(self.environment)} only"


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """Commands for the daemon. stopping: it may be gone already."""

    lines: tuple[str, ...]
    stopping: bool = False

    def __str__(self) -> str:
        return f"control command {self.lines[0]}" if self.stopping else "control commands"


@dataclasses.dataclass(frozen=True, slots=True)
class Touch:
    """A file that says something by being there. last: only when all daemons of the node run."""

    path: Path
    last: bool = False

    def __str__(self) -> str:
        return f"touch {self.path}{' (after all daemons)' if self.last else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Remove:
    """A file or directory that shall not be there any more."""

    path: Path

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclasses.dataclass(frozen=True, slots=True)
class FollowLog:
    """Have what the daemon logs in the agent's log, or (stop) no more."""

    path: Path
    stop: bool = False

    def __str__(self) -> str:
        return "stop tail" if self.stop else f"tail {self.path.parent.name}/{self.path.name}"


Step = SetComputeMode | MakeDirectory | RunDaemon | Command | Touch | Remove | FollowLog


PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
# All that the program is given.
VARIABLES: Final = frozenset({PIPE_VARIABLE, "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"})


def environment(spec: Spec, places: Places) -> dict[str, str]:
    """Of the daemon, and of the program that carries commands to it."""
    variables = {PIPE_VARIABLE: str(places.pipe), "CUDA_MPS_LOG_DIRECTORY": str(places.log)}
    if spec.alone:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in spec.gpus)
    return variables


def limit_commands(spec: Spec) -> tuple[str, ...]:
    """The commands that set the limits of a client: memory of each GPU, and one part of the multiprocessors for all."""
    commands = []
    for position, gpu in enumerate(spec.gpus):
        mib = limits.memory_mib(gpu.memory_bytes, replicas=gpu.replicas, shares=gpu.at_once)
        if mib is not None:
            ordinal = position if spec.alone else gpu.index
            commands.append(f"set_default_device_pinned_mem_limit {ordinal} {mib}M")
    # NVIDIA's daemon has no percentage of one GPU; with several that are shared differently it is the average.
    replicas = sum(gpu.replicas for gpu in spec.gpus) // len(spec.gpus)
    at_once = min(gpu.at_once for gpu in spec.gpus)
    return (*commands, f"set_default_active_thread_percentage {limits.thread_percent(replicas, shares=at_once)}")


def start(spec: Spec, places: Places) -> tuple[Step, ...]:
    """What makes the daemon run with its limits."""
    return (
        SetComputeMode(True, tuple(gpu.uuid for gpu in spec.gpus)),
        MakeDirectory(places.pipe),
        MakeDirectory(places.log),
        RunDaemon(environment(spec, places)),
        Command(limit_commands(spec)),
        Touch(places.started),
        FollowLog(places.log / "control.log"),
    )


def stop(spec: Spec, places: Places) -> tuple[Step, ...]:
    """What ends it, whatever of it is there."""
    return (
        Command(("quit",), stopping=True),
        FollowLog(places.log / "control.log", stop=True),
        SetComputeMode(False, tuple(gpu.uuid for gpu in spec.gpus)),
        Remove(places.started),
        Remove(places.log),
    )
