"""PyTorch for CUDA on simulated GPUs, alone and in shares of one.

PyTorch is real. Below it are the runtime in cudart/, the shipped library and arbiter, and the simulated driver.
Features that need cuBLAS, cuDNN or NCCL are not tested: these contain NVIDIA's runtime, which does not start on a
simulated driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.arbiter import share_resizing
from tests.clients.cuda import share
from tests.deviceplugin import simulated
from tests.interposer import container
from tests.interposer.programs.looking import most_since_the_last_line
from tests.programs import PATH, command

pytestmark = pytest.mark.slow

GPU_BYTES = 40 * share.GIB
PIECE_BYTES = 256 << 20
SEGMENT_BYTES = 20 << 20  # the granularity of expandable segments
ALLOCATORS = {
    "native": "backend:native",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
SECONDS = 5  # for tests in which processes allocate at random

PROGRAMS = Path(__file__).parent / "programs"


def environment(allocator: str) -> dict[str, str]:
    return {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]}


def check_sizes(output: str, total_bytes: int, allocator: str) -> None:
    answer: list[Any] = json.loads(output)
    total, pieces, error, memory, backend = answer
    assert total == total_bytes
    unit = SEGMENT_BYTES if allocator == "expandable" else 1
    assert pieces == total_bytes // unit * unit // PIECE_BYTES, "all of it can be had, and no more"
    assert allocator == "async" or f"total capacity of {total_bytes / share.GIB:.2f} GiB" in error
    assert memory == [total_bytes, total_bytes], "what it gave back is there again"
    assert backend == ("cudaMallocAsync" if allocator == "async" else "native")


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_program_alone_can_allocate_the_whole_gpu(pytorch: Path, gpus: Path, allocator: str) -> None:
    check_sizes(
        share.run_alone(gpus, [pytorch, PROGRAMS / "sizes.py", str(PIECE_BYTES)], environment(allocator)),
        GPU_BYTES,
        allocator,
    )


@pytest.mark.parametrize("allocator", ALLOCATORS)
async def test_a_program_in_a_share_can_allocate_the_whole_share(
    pytorch: Path, shares: share.Shares, allocator: str
) -> None:
    pod = shares.add()
    check_sizes(
        await shares.run(pod, [pytorch, PROGRAMS / "sizes.py", str(PIECE_BYTES)], environment(allocator)),
        share.SHARE_BYTES,
        allocator,
    )


async def test_typical_gpu_work_runs_in_a_share(pytorch: Path, shares: share.Shares) -> None:
    answer = json.loads(await shares.run(shares.add(), [pytorch, PROGRAMS / "work.py"]))
    assert answer["name"] == "NVIDIA A100-SXM4-40GB"
    assert answer["graph"] == [0, 3], "a copy of a graph is done when the graph is launched"
    assert answer["train"] == 8
    assert answer["timed"] >= 1, "a hundred kernels of 10 microseconds"
    assert answer["shared"] == ["cuda", [0, 1, 2], share.SHARE_BYTES], "a tensor of another process"
    assert answer["forked"] == 0


def _look_on(gpus: Path) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": PATH, "SIMGPU_DIR": str(gpus), "LD_LIBRARY_PATH": str(simulated.BUILD)}
    return subprocess.Popen(
        command(most_since_the_last_line), env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@contextlib.asynccontextmanager
async def looking(gpus: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """Run a process outside of all shares that samples the first GPU without a pause."""
    with container.finishing(_look_on(gpus)) as process:
        yield process


async def look(process: subprocess.Popen[str]) -> list[int]:
    """Return the maximum since the last call, and the present value."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("look\n")
    process.stdin.flush()
    async with asyncio.timeout(60):
        return [int(word) for word in (await asyncio.to_thread(process.stdout.readline)).split()]


async def stop(process: subprocess.Popen[str]) -> list[int]:
    """Stop the program; return its last output."""
    output, errors = await asyncio.to_thread(process.communicate, "stop\n", timeout=60)
    assert process.returncode == 0, f"{output} {errors}"
    return [int(word) for word in output.split()]


@contextlib.asynccontextmanager
async def storms(
    pytorch: Path, shares: share.Shares, pod: str, allocator: str, count: int
) -> AsyncIterator[list[subprocess.Popen[str]]]:
    """Run processes in one share that all allocate at random."""
    with contextlib.ExitStack() as stack:
        processes = []
        for seed in range(count):
            process = shares.start(pod, [pytorch, PROGRAMS / "storm.py", str(seed)], environment(allocator))
            processes.append(stack.enter_context(container.finishing(process)))
        for process in processes:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert line == "ready\n", process.communicate(timeout=20)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield processes


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("allocator", ALLOCATORS)
async def test_processes_of_a_share_never_exceed_it(
    pytorch: Path, shares: share.Shares, gpus: Path, allocator: str, count: int
) -> None:
    pod = shares.add()
    async with looking(gpus) as looks, storms(pytorch, shares, pod, allocator, count) as running:
        await asyncio.sleep(SECONDS)
        answers = [await stop(process) for process in running]
        most, left = await look(looks)
    assert most <= share.SHARE_BYTES
    assert left == 0
    assert not any(shares.node.used(pod) or ())
    assert all(made > 10 for made, _ in answers)
    assert sum(refused for _, refused in answers) > 0, "they met the limit"


@pytest.mark.parametrize("allocator", ALLOCATORS)
async def test_a_share_is_resized_under_load(
    pytorch: Path, shares: share.Shares, gpus: Path, allocator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_resizing, "RETRY_SECONDS", 0.01)
    node, dice, grown, shrunk = shares.node, random.Random(3), 0, 0
    pod = shares.add()

    async with looking(gpus) as looks, storms(pytorch, shares, pod, allocator, 2) as running:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            (given_share,) = node.allocations[0].shares
            most, _ = await look(looks)
            assert most <= given_share.memory_bytes
            if given_share.shrink_to_bytes is None and dice.random() < 0.5:
                node.change(
                    pod, memory_bytes=min(2 * share.SHARE_BYTES, given_share.memory_bytes + dice.randrange(share.GIB))
                )
                grown += 1
            elif given_share.shrink_to_bytes is None:
                node.change(pod, shrink_to_bytes=dice.randrange(share.GIB, given_share.memory_bytes))
            elif {resize.memory_bytes for resize in node.resizes} == {given_share.shrink_to_bytes}:
                node.change(pod, memory_bytes=given_share.shrink_to_bytes, shrink_to_bytes=None)
                shrunk += 1
        for process in running:
            await stop(process)
    assert grown > 0
    assert shrunk > 0
