"""Tests NVIDIA's Python bindings of the driver, which look up functions as the CUDA runtime does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from lab import build
from tests.interposer import cuda_headers
from tests.interposer.conftest import MIB, ArbiterMaker
from tests.interposer.container import Container
from tests.interposer.programs import bindings
from tests.programs import PATH, command

PACKAGES = ("cuda-bindings==12.9.10", "cuda-pathfinder==1.9.0")
LIMIT = 64 * MIB


@pytest.fixture(scope="module")
def packages() -> Path:
    """The directory of the unpacked packages, in the user's cache."""
    target = build.cache_directory() / "python-clients" / f"{PACKAGES[0]}-{sys.implementation.cache_tag}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--retries=1", "--timeout=15", f"--dest={scratch}", *PACKAGES]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            if cuda_headers.in_ci():
                raise
            pytest.skip(f"{', '.join(PACKAGES)} cannot be downloaded: {error}")
        unpacked = Path(scratch) / "unpacked"
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # another process was faster
                raise
    return target


@pytest.mark.slow
@pytest.mark.parametrize("per_thread", ["0", "1"], ids=["legacy stream", "per-thread stream"])
def test_bindings_are_limited_and_launch(
    container: Container, make_arbiter: ArbiterMaker, packages: Path, per_thread: str
) -> None:
    make_arbiter(LIMIT)
    environment = {"PYTHONPATH": f"{packages}:{PATH}", "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": per_thread}
    result = container.run(command(bindings.fills_and_launches, LIMIT), environment)
    assert result.stdout == "done\n", result.stderr
