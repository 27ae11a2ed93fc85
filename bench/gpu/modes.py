"""Ways to start programs: natively, in a share of gpushare, under MPS, or with another library that limits them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpushare.allocation import Isolation
from tests.interposer import container

_START_SECONDS = 10.0  # for the daemon to answer
_ANSWER_SECONDS = 5.0
_QUIT_SECONDS = 3  # for its servers, which wait for their clients
_PID_FILE = "nvidia-cuda-mps-control.pid"
_running: set[Path] = set()  # the pipe directories of daemons


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """A way to start programs: a library to preload, and environment variables.

    variables: values may hold {limit} (percent), {memory} (bytes), {memory_mib} and {share}, a name for each share.
    mps_pipe: the directory of the MPS daemon whose clients gpushare's shares are.
    """

    name: str
    preload: tuple[Path, ...] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mps_pipe: Path | None = None

    @property
    def ours(self) -> bool:
        return self.preload == OURS.preload

    @property
    def isolation(self) -> Isolation:
        """The isolation of gpushare's shares."""
        return Isolation.ARBITER if self.mps_pipe is None else Isolation.MPS

    @property
    def keeps_requests(self) -> bool:
        """Whether a busy GPU is divided by requests. In other modes, requests become limits."""
        return self.ours and self.isolation is Isolation.ARBITER

    @property
    def limits_memory(self) -> bool:
        """Whether a limit of memory can be passed to it."""
        return self.ours or any("{memory" in value for value in self.variables.values())


NATIVE = Mode("native")
OURS = Mode("gpushare", (container.LIBRARY,))
MPS, OURS_MPS = "mps", "gpushare-mps"


def parse_peer(text: str) -> Mode:
    """Parse NAME=PATH[,VARIABLE=VALUE...]. Raises ValueError."""
    first, *rest = text.split(",")
    name, _, path = first.partition("=")
    if not name or not Path(path).is_file() or not all("=" in pair for pair in rest):
        raise ValueError(f"{text!r} is not NAME=PATH[,VARIABLE=VALUE...] with the path of an existing library")
    mode = Mode(name, (Path(path).resolve(),), dict(pair.split("=", 1) for pair in rest))
    try:
        mode_variables(mode, share="t1", limit=100, memory_bytes=1)
    except (KeyError, IndexError) as error:
        raise ValueError(f"{text!r}: unknown {{{error.args[0]}}}: use {{limit}}, {{memory}}, ...") from error
    return mode


def mode_variables(mode: Mode, *, share: str, limit: int, memory_bytes: int) -> dict[str, str]:
    """Return the environment of one share, with its amounts filled in."""
    facts = {"share": share, "limit": limit, "memory": memory_bytes, "memory_mib": memory_bytes >> 20}
    return {name: value.format(**facts) for name, value in mode.variables.items()}


@contextlib.contextmanager
def mps(environment: Mapping[str, str], directory: Path) -> Iterator[Mapping[str, Mode]]:
    """Run an MPS daemon with its pipes in `directory`; yield the modes with it by name, or none if it does not start.

    The GPU's compute mode stays as it is. Programs in other modes do not use the daemon.
    """
    command = shutil.which("nvidia-cuda-mps-control", path=environment.get("PATH", os.defpath))
    if command is None:
        yield {}
        return
    pipes, logs = directory / "pipe", directory / "log"
    for each in (pipes, logs):
        each.mkdir(parents=True, exist_ok=True)
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    own = {**environment, **variables}
    _running.add(pipes)
    try:
        bare = Mode(MPS, variables={**variables, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "{limit}"})
        both = {MPS: bare, OURS_MPS: Mode(OURS_MPS, OURS.preload, mps_pipe=pipes)}
        yield both if _started(command, own) else {}
    finally:
        pid = _pid(pipes)
        _do([command], own, f"quit -t {_QUIT_SECONDS}\nquit\n")  # the second line is for daemons without -t
        end = time.monotonic() + _ANSWER_SECONDS
        while pid is not None and _is_daemon(pid) and time.monotonic() < end:
            time.sleep(0.05)
        kill_daemons()


def kill_daemons() -> None:
    """Kill this process's remaining MPS daemons, with their servers."""
    while _running:
        pid = _pid(_running.pop())
        if pid is not None and _is_daemon(pid):
            with contextlib.suppress(OSError):
                group = os.getpgid(pid)
                os.kill(pid, signal.SIGKILL) if group == os.getpgrp() else os.killpg(group, signal.SIGKILL)


def _pid(pipes: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((pipes / _PID_FILE).read_text())
    return None


def _is_daemon(pid: int) -> bool:
    """Whether an MPS daemon runs under this pid."""
    with contextlib.suppress(OSError):
        return b"mps" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _started(command: str, environment: Mapping[str, str]) -> bool:
    """Start the daemon. Return whether it answers in time."""
    end = time.monotonic() + _START_SECONDS
    if not _do([command, "-d"], environment):
        return False
    while not _do([command], environment, "get_server_list\n"):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _do(command: list[str], environment: Mapping[str, str], text: str = "") -> bool:
    """Run the daemon's command with a timeout. Return whether it succeeded."""
    with Path(os.devnull).open("w") as nothing:  # not a pipe: the daemon would keep it open
        try:
            subprocess.run(
                command,
                env=environment,
                input=text,
                stdout=nothing,
                stderr=nothing,
                text=True,
                check=True,
                timeout=_ANSWER_SECONDS,
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return True
