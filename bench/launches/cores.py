"""The cores of this machine: how busy they are, and that they do not go to sleep.

An idle core sleeps, and takes tens of microseconds to wake. One that is alone on the simulated GPU, and waits
for each kernel would pay that for each of them, and with a neighbour, who keeps the cores awake, would not: then one
alone would be no measure for two. So a program that gives way to all else runs on each of them.
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

# It ends with the bench, however that ends: its input is a pipe that nobody else holds.
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
    """Keep all cores awake for as long as the context lasts."""
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
    """Now, and for how long cores have been busy since boot, both in seconds; what gives way does not count.

    Raises OSError without /proc.
    """
    user, _, system, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return time.monotonic(), (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
