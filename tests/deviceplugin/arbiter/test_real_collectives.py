"""Two shares whose kernels wait for each other across GPUs, like collectives of training, compared with no leases."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from gpushare.allocation import GivenShare
from tests.deviceplugin import simulated
from tests.deviceplugin.arbiter.programs import collectives
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.interposer import container
from tests.programs import command

pytestmark = pytest.mark.slow

SECONDS = 1.5
# Relative to the driver's own time slices. With an independent scheduler per GPU it is a random fraction of that.
MIN_PART = 0.65
WINDOWS = 3
Order = tuple[int, int]


@pytest.fixture(autouse=True)
def _built() -> None:
    simulated.build()
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)


async def together(
    node: ArbiterNode, gpus: Path, symbol: str, orders: tuple[Order, Order], *, threads: bool, preload: tuple[Path, ...]
) -> list[int]:
    """Return the number of steps of each of two shares that launch on the two GPUs in these orders."""
    box = container.Container(node.socket.parent, gpus, preload)
    uuids = tuple(simulated.uuids(gpus)[:2])
    processes = []
    try:
        for name, order in zip(("one", "two"), orders, strict=True):
            if name not in {entry.pod.name for entry in node.allocations}:
                node.add_pod(name, GivenShare(("main",), uuids, 50, 100, 1 << 28))
            environment = {"TEST_POD": name, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0,1"}
            steps = command(collectives.steps, symbol, SECONDS, order, threads)
            processes.append(box.start(steps, environment))
        for process in processes:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n", process.communicate()
        answers = [asyncio.to_thread(process.communicate, "\n", timeout=30) for process in processes]
        return [int(output) for output, _ in await asyncio.gather(*answers)]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.mark.parametrize(
    ("symbol", "orders", "threads"),
    [
        ("cuLaunchKernel", ((0, 1), (0, 1)), False),
        ("cuLaunchKernel", ((0, 1), (1, 0)), False),
        ("cuLaunchCooperativeKernel", ((0, 1), (1, 0)), False),
        ("cuLaunchKernel", ((0, 1), (0, 1)), True),
    ],
    ids=["the same order", "crosswise", "crosswise, cooperative", "a thread a GPU"],
)
async def test_two_shares_with_collectives_across_two_gpus_lose_little_to_leases(
    node: ArbiterNode, gpus: Path, symbol: str, orders: tuple[Order, Order], threads: bool
) -> None:
    sliced, got = list[list[int]](), list[list[int]]()
    for _ in range(WINDOWS):  # other work on this machine takes a window now and then
        sliced.append(await together(node, gpus, symbol, orders, threads=threads, preload=()))
        got.append(await together(node, gpus, symbol, orders, threads=threads, preload=(container.LIBRARY,)))
        least = MIN_PART * min(map(sum, sliced))
        if any(sum(steps) >= least and min(steps) >= max(steps) / 2 for steps in got):
            return
    raise AssertionError(f"{got} steps with leases, {sliced} without")
