"""CUDA compilers and bindings for Python: they find a GPU or a share, compile, launch, and reach the share's limit.

Compilers and bindings are real, from their packages. The compiled kernels are launched and take time, but do not
execute.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import clients
from tests.clients.cuda import packages, share

pytestmark = pytest.mark.slow

GPU_BYTES = 40 * share.GIB
FRAMEWORKS = {"torch"}  # tested in tests/frameworks
PIECE_BYTES = 256 << 20
LAUNCHES = 20
KERNEL_MS = 0.010  # for a simulated kernel whose name has no duration

HERE = Path(__file__).parent
PROGRAMS = {"numba-cuda": "numba_kernels.py", "nvidia-cuda-nvrtc-cu12": "nvrtc_kernels.py"}  # as in clients.CUDA


@pytest.fixture(scope="session")
def python() -> Path:
    return packages.python(Path(__file__).with_name("compilers.lock"))


def command(python: Path, program: str) -> list[str | Path]:
    return [python, HERE / "programs" / PROGRAMS[program], str(LAUNCHES), str(PIECE_BYTES)]


def check(output: str, total_bytes: int) -> None:
    answer: list[Any] = json.loads(output)
    memory, back, elapsed_ms, pieces, free_bytes, error = answer
    assert memory == [total_bytes, total_bytes]
    assert back == [0, 1, 2]
    assert elapsed_ms >= LAUNCHES * KERNEL_MS, "kernels were launched, and took their time"
    assert (pieces, free_bytes) == (total_bytes // PIECE_BYTES, 0), "all of it can be had, to the byte"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in error


def test_every_program_of_the_table_is_tested() -> None:
    assert {client.name for client in clients.CUDA} - FRAMEWORKS == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_alone_has_the_whole_gpu(python: Path, gpus: Path, program: str) -> None:
    check(share.run_alone(gpus, command(python, program)), GPU_BYTES)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_in_a_share_has_the_share(python: Path, shares: share.Shares, program: str) -> None:
    check(await shares.run(shares.add(), command(python, program)), share.SHARE_BYTES)
