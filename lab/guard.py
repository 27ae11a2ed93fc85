"""Takes a lab down when the process that started it ends, so that a killed test run leaves no cluster behind.

`python -m lab.guard DIRECTORY OWNER` imports the rest of the lab only then.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from lab import daemon_process, lab_layout

NAME = "guard"
REPOSITORY = Path(__file__).resolve().parent.parent


def start(lab: lab_layout.Layout, owner: int) -> None:
    """Start a guard that takes the lab down when the process `owner` ends."""
    argv = (sys.executable, "-m", "lab.guard", str(lab.directory), str(owner))
    daemon_process.start(daemon_process.Process(NAME, argv, directory=REPOSITORY), lab.processes, lab.logs)


def stop(lab: lab_layout.Layout) -> None:
    """Stop the guard, unless the caller is the guard itself."""
    if daemon_process.pid_of(NAME, lab.processes) != os.getpid():
        daemon_process.stop([(NAME, 2.0)], lab.processes)


def wait_for_end(owner: int) -> None:
    """Wait until a process has ended; return at once if there is none."""
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    select.select([handle], [], [])
    os.close(handle)


if __name__ == "__main__":
    wait_for_end(int(sys.argv[2]))

    from lab import cluster

    cluster.down(Path(sys.argv[1]))
