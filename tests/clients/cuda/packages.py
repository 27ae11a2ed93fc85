"""Other projects' packages: each lock file has a virtual environment in the user's cache.

`make lock-clients` generates a lock from the .in file next to it. Environments are created per lock and Python version,
and can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab import build


def python(lock: Path, *, download_seconds: float = 240) -> Path:
    """Return the interpreter with the packages of a lock. Without it, the test is skipped, or fails where it must
    run.
    """
    key = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    environment = build.cache_directory() / "clients" / f"{lock.stem}-{key}"
    if not environment.is_dir():
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            pytest.skip(f"{lock.name} has packages for x86-64 alone")
        try:
            _make(environment, lock, download_seconds)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            if os.environ.get("CI"):
                raise
            lines = str(error.stderr or error).strip().splitlines()
            pytest.skip(f"the packages of {lock.name} cannot be downloaded: {lines[-1] if lines else error}")
    return environment / "bin" / "python"


def _make(environment: Path, lock: Path, download_seconds: float) -> None:
    environment.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=environment.parent) as scratch:
        made = Path(scratch) / "environment"
        uv = [sys.executable, "-m", "uv", "--quiet", "--cache-dir", f"{scratch}/cache"]
        options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--python", str(made / "bin" / "python")]
        for command in (
            [*uv, "venv", "--relocatable", "--python", sys.executable, str(made)],
            [*uv, "pip", "install", *options, "--requirement", str(lock)],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=download_seconds)
        try:
            made.rename(environment)
        except OSError:
            if not environment.is_dir():  # another process created it first
                raise
