"""Programs that start others, replace themselves, or end, in every way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from tests.interposer.cuda_client import MIB, OUT_OF_MEMORY, SUCCESS, Cuda


def in_a_subprocess(probe: str) -> str:
    return subprocess.run([probe, "--fill"], capture_output=True, text=True).stdout  # uses vfork


def spawned(start: Callable[[int], int]) -> str:
    into, out = os.pipe()
    child = start(out)
    os.close(out)
    with os.fdopen(into) as pipe:
        output = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return output


def by_posix_spawn(probe: str) -> str:
    def start(out: int) -> int:
        return os.posix_spawn(probe, [probe, "--fill"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out, 1)])

    return spawned(start)


def by_fork(probe: str) -> str:
    def forked(out: int) -> int:
        child = os.fork()
        if child == 0:
            os.dup2(out, 1)
            os.execv(probe, [probe, "--fill"])
        return child

    return spawned(forked)


STARTERS = {"subprocess": in_a_subprocess, "posix_spawn": by_posix_spawn, "fork and exec": by_fork}
ENDINGS = {
    "a status": lambda: sys.exit(0),
    "at once": lambda: os._exit(3),
    "abort": os.abort,
    "a signal": lambda: os.kill(os.getpid(), 11),
    "an exception": lambda: 1 / 0,
    "an end": lambda: None,
}


def starts_another(starter: str, probe: str) -> None:
    c = Cuda()
    assert c.allocate(20 * MIB)[0] == SUCCESS
    assert STARTERS[starter](probe).splitlines()[-1] == f"filled {44 * MIB}"
    assert c.allocate(44 * MIB)[0] == SUCCESS, "the other program's memory is free again"
    assert c.allocate(1)[0] == OUT_OF_MEMORY


def becomes_another(probe: str) -> None:
    c = Cuda()
    assert c.allocate(50 * MIB)[0] == SUCCESS
    os.execv(probe, ["probe", "--fill"])


def fills_and_ends(size_bytes: int, ending: str) -> None:
    assert Cuda().allocate(size_bytes)[0] == SUCCESS
    ENDINGS[ending]()
