"""New cgroups for tests, where cgroup v2 is mounted. A machine may have both versions, so the mount has to be found."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


def hierarchy() -> Path:
    """Return where cgroup v2 is mounted; skips the test if cgroups cannot be made there."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(point) for _, point, kind, *_ in mounts if kind == "cgroup2"), None)
    if os.geteuid() != 0 or root is None or not os.access(root, os.W_OK):
        pytest.skip("the driver's memory limits need root, and a writable mount of cgroup v2")
    return root


@contextlib.contextmanager
def new() -> Iterator[Path]:
    """Yield a new cgroup; at the end, it is removed with those in it."""
    path = hierarchy() / f"gpushare-test-{uuid.uuid4().hex}"
    path.mkdir()
    try:
        yield path
    finally:
        for inner in sorted((inner for inner in path.rglob("*") if inner.is_dir()), reverse=True):
            inner.rmdir()
        path.rmdir()
