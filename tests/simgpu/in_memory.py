"""A temporary directory in memory, so that files mapped from it never wait for a disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")


@contextmanager
def directory(otherwise: Path) -> Iterator[Path]:
    """Yield a directory that is removed at the end of the block; without /dev/shm it is below the other one."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else otherwise
    with tempfile.TemporaryDirectory(prefix="gpushare-tests-", dir=parent) as made:
        yield Path(made)
