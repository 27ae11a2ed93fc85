"""The cores of this machine: how busy they are, and how to keep them awake.

An idle core sleeps, and takes tens of microseconds to wake. A program that is alone on the simulated GPU and waits for
each kernel would pay for that wake-up each time. A neighbour keeps the cores awake, so the two cases would not compare.
Therefore a program of lowest priority runs on each core.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# The program ends with the bench in any case: no other process holds the other end of its stdin.
_SPIN: Final = """
import os, select
os.nice(19)
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
end = select.poll()
end.register(0, select.POLLHUP)
while not end.poll(0):
    for _ in range(100_000):
        pass
"""


@contextlib.contextmanager
def kept_awake() -> Iterator[None]:
    """Keep all cores awake while the context lasts."""
    processes = [
        subprocess.Popen([sys.executable, "-c", _SPIN], stdin=subprocess.PIPE) for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def busy_seconds() -> tuple[float, float]:
    """Return the current time and the cores' busy time since boot, in seconds, without niced processes.

    Raises OSError without /proc.
    """
    user, _, system, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return time.monotonic(), (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
