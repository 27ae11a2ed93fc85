"""A directory that is in memory: what is mapped from it waits for no disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")


@contextmanager
def directory(otherwise: Path) -> Iterator[Path]:
    """Gone at the end of the block; where there is no such place, it is in the other one."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else otherwise
    with tempfile.TemporaryDirectory(prefix="gpushare-tests-", dir=parent) as made:
        yield Path(made)
