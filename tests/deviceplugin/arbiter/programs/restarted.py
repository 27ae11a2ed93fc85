"""Programs whose arbiter is killed and restarted."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import sys
import time
from pathlib import Path

from tests.interposer.cuda_client import OUT_OF_MEMORY, SUCCESS, Cuda

DESCRIPTORS = Path("/proc/self/fd")
BURST, PAUSE_SECONDS = 100, 0.02  # the four programs would take all cores


def sockets() -> dict[str, str]:
    names = {}
    for path in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            names[path.name] = str(path.readlink())
    return {number: name for number, name in names.items() if name.startswith("socket:")}


def forks() -> None:
    """Open a file, which gets the number that the library's old connection had, and check it in a child."""
    assert not sockets()
    Cuda()
    before = sockets()
    assert len(before) == 1
    print("ready", flush=True)
    input()
    until = time.monotonic() + 10
    while sockets() == before or len(sockets()) != 1:
        assert time.monotonic() < until, "it has not connected again"
        time.sleep(0.05)
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    child = os.fork()
    if child == 0:
        kept = all((DESCRIPTORS / str(file)).exists() for file in files)
        os._exit(0 if kept and not sockets() else 7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def allocates() -> None:
    """Allocate and free, in bursts. Pause at each line of input until the next one, and print what is held."""
    os.nice(10)  # the next arbiter starts beside it, and so do other tests
    c, dice = Cuda(), random.Random(os.getpid())
    held: dict[int, int] = {}
    print("ready", flush=True)
    for number in itertools.count(1):
        if number % BURST == 0:
            time.sleep(PAUSE_SECONDS)
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                break
            print(sum(held.values()), flush=True)
            sys.stdin.readline()
        if held and dice.random() < 0.5:
            pointer = dice.choice(list(held))
            assert c.free(pointer) == SUCCESS
            del held[pointer]
        else:
            size = dice.randrange(1, 1 << 22)
            result, pointer = c.allocate(size)
            if result == SUCCESS:
                held[pointer] = size
            else:
                assert result == OUT_OF_MEMORY, result
