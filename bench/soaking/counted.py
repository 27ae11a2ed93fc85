"""`python -m soaking.counted -m MODULE …` runs a module, and writes its number of asyncio tasks once a second.

The file is named by its pid, in the directory $SOAK_TASKS.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
import threading
import time
from pathlib import Path

EVERY_SECONDS = 1.0


def tasks() -> int:
    """Return the tasks of all loops of this process. Their set has other names since Python 3.12."""
    names = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
    return sum(len(getattr(asyncio.tasks, name, ())) for name in names)


def write(file: Path) -> None:
    while True:
        scratch = file.with_suffix(".new")
        scratch.write_text(str(tasks()))
        scratch.rename(file)
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    own = Path(os.environ["SOAK_TASKS"]) / str(os.getpid())
    threading.Thread(target=write, args=(own,), daemon=True).start()
    module, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
