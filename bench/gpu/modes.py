"""Ways to start programs: natively, in a share of gpushare's, under MPS, or with another library that limits them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.interposer import container

_ATTEMPTS = 50  # a tenth of a second apart, for the daemon to answer


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """A way to start programs: a library to preload, and environment variables.

    variables: values may hold {limit} (percent), {memory} (bytes), {memory_mib} and {share}, a name for each share.
    """

    name: str
    preload: tuple[Path, ...] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.preload == OURS.preload

    @property
    def limits_memory(self) -> bool:
        """Whether a limit of memory can be passed to it."""
        return self.ours or any("{memory" in value for value in self.variables.values())


NATIVE = Mode("native")
OURS = Mode("gpushare", (container.LIBRARY,))


def parse_peer(text: str) -> Mode:
    """NAME=PATH[,VARIABLE=VALUE...]. Raises ValueError."""
    first, *rest = text.split(",")
    name, _, path = first.partition("=")
    if not name or not Path(path).is_file() or not all("=" in pair for pair in rest):
        raise ValueError(f"{text!r} is not NAME=PATH[,VARIABLE=VALUE...] with the path of a library that is there")
    mode = Mode(name, (Path(path).resolve(),), dict(pair.split("=", 1) for pair in rest))
    try:
        mode_variables(mode, share="t1", limit=100, memory_bytes=1)
    except (KeyError, IndexError) as error:
        raise ValueError(f"{text!r}: there is no {{{error.args[0]}}}; there are {{limit}}, {{memory}}, ...") from error
    return mode


def mode_variables(mode: Mode, *, share: str, limit: int, memory_bytes: int) -> dict[str, str]:
    """Return the environment of one share, with its amounts filled in."""
    facts = {"share": share, "limit": limit, "memory": memory_bytes, "memory_mib": memory_bytes >> 20}
    return {name: value.format(**facts) for name, value in mode.variables.items()}


@contextlib.contextmanager
def mps(environment: Mapping[str, str], directory: Path) -> Iterator[Mode | None]:
    """Run an MPS daemon with its pipes in `directory`; None where there is no daemon or it does not start.

    The GPU's compute mode stays as it is. Programs in other modes do not use the daemon.
    """
    command = shutil.which("nvidia-cuda-mps-control", path=environment.get("PATH", os.defpath))
    if command is None:
        yield None
        return
    pipes, logs = directory / "pipe", directory / "log"
    for each in (pipes, logs):
        each.mkdir(parents=True, exist_ok=True)
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    own = {**environment, **variables}
    if not (_do([command, "-d"], own) and any(_answers(command, own) for _ in range(_ATTEMPTS))):
        yield None
        return
    try:
        yield Mode("mps", variables={**variables, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "{limit}"})
    finally:
        _do([command], own, "quit\n")


def _answers(command: str, environment: Mapping[str, str]) -> bool:
    time.sleep(0.1)
    return _do([command], environment, "get_server_list\n")


def _do(command: list[str], environment: Mapping[str, str], text: str = "") -> bool:
    """Run the daemon's command with a timeout. Return whether it succeeded."""
    with Path(os.devnull).open("w") as nothing:  # not a pipe: the daemon would keep it open
        try:
            subprocess.run(
                command, env=environment, input=text, stdout=nothing, stderr=nothing, text=True, check=True, timeout=15
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return True
