"""Whole frameworks. They are large downloads, so only `make test-frameworks` runs these tests."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.clients.cuda import packages, share

HERE = Path(__file__).parent
CUDART = HERE / "cudart"
DOWNLOAD_SECONDS = 1200

collect_ignore_glob = [] if os.environ.get("GPUSHARE_TEST_FRAMEWORKS") == "1" else ["test_*.py"]


@pytest.fixture(scope="session")
def pytorch() -> Path:
    """The interpreter with PyTorch, where the runtime in cudart/ replaces NVIDIA's."""
    python = packages.python(HERE / "pytorch.lock", download_seconds=DOWNLOAD_SECONDS)
    (runtime,) = python.parents[1].glob("lib/python*/site-packages/nvidia/cuda_runtime")
    library = runtime / "lib" / "libcudart.so.12"
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        headers = [f"-isystem{runtime / 'include'}", f"-isystem{runtime.parent / 'cuda_nvcc' / 'include'}"]
        warnings = ["-Wall", "-Wextra", "-Werror"]
        link = [f"-Wl,-soname,{library.name}", f"-Wl,--version-script={CUDART / 'libcudart.map'}"]
        compiler = ["gcc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", *warnings]
        sources = sorted(CUDART.glob("*.c"))
        subprocess.run([*compiler, *headers, *link, "-o", made, *sources], check=True, timeout=120)
        made.rename(library)  # and never modified: other environments may link the same file
    return python


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    """Two simulated GPUs."""
    return share.gpus(tmp_path)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
async def shares(short_path: Path, gpus: Path) -> AsyncIterator[share.Shares]:
    """Shares of the first GPU."""
    async with share.opened(short_path, gpus) as made:
        yield made
