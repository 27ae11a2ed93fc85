"""Two tenants whose kernels wait for each other across GPUs, as the collectives of training do: compared with the same without leases."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.allocation import GivenShare
from tests.deviceplugin import simulated
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.interposer import container

pytestmark = pytest.mark.slow

SECONDS = 1.5
# Of what the driver's own time slices reach. With each GPU by itself it is a fraction of that, by chance.
LEAST_PART = 0.65
WINDOWS = 3
# A step is a kernel on each GPU; each keeps its GPU busy until the others have begun. Says how many it did.
STEPS = """
import sys, threading, time
c = Cuda()
PTR = ctypes.c_void_p
symbol, seconds, order, threads = sys.argv[1], float(sys.argv[2]), [int(each) for each in sys.argv[3]], sys.argv[4] == "True"
functions = {}
for device in order:
    c.use(device)
    module, functions[device] = PTR(), PTR()
    c.check("cuModuleLoadData", ctypes.byref(module), b"")
    c.check("cuModuleGetFunction", ctypes.byref(functions[device]), module, b"meet2_2ms")
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + seconds
def launch(device):
    c.use(device)
    c.check(symbol, functions[device], 1, 1, 1, 1, 1, 1, 0, None, *[None] * (2 - ("Cooperative" in symbol)))
def wait(device):
    c.use(device)
    c.check("cuCtxSynchronize")
steps, both, going_on = 0, threading.Barrier(2), True
def rank(device):
    global steps, going_on
    while going_on:
        launch(device)
        wait(device)
        if device == order[0]:
            steps += 1
            going_on = time.monotonic() < until
        both.wait()
if threads:
    ranks = [threading.Thread(target=rank, args=(device,)) for device in order]
    for each in ranks: each.start()
    for each in ranks: each.join()
while not threads and time.monotonic() < until:
    for device in order: launch(device)
    for device in order: wait(device)
    steps += 1
print(steps)
"""


@pytest.fixture(autouse=True)
def _built() -> None:
    simulated.build()
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)


async def together(
    node: ArbiterNode, gpus: Path, symbol: str, orders: tuple[str, str], *, threads: bool, preload: tuple[Path, ...]
) -> list[int]:
    """How many steps each of two tenants did, which launch on the two GPUs in these orders."""
    box = container.Container(node.socket.parent, gpus, preload)
    uuids = tuple(simulated.uuids(gpus)[:2])
    processes = []
    try:
        for name, order in zip(("one", "two"), orders, strict=True):
            if name not in {entry.pod.name for entry in node.allocations}:
                node.add_pod(name, GivenShare(("main",), uuids, 50, 100, 1 << 28))
            environment = {"TEST_POD": name, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0,1"}
            words = [symbol, str(SECONDS), order, str(threads)]
            processes.append(box.start([sys.executable, "-c", container.CLIENT_PRELUDE + STEPS, *words], environment))
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
        ("cuLaunchKernel", ("01", "01"), False),
        ("cuLaunchKernel", ("01", "10"), False),
        ("cuLaunchCooperativeKernel", ("01", "10"), False),
        ("cuLaunchKernel", ("01", "01"), True),
    ],
    ids=["the same order", "crosswise", "crosswise, cooperative", "a thread a GPU"],
)
async def test_two_tenants_with_collectives_across_two_gpus_lose_little_by_leases(
    node: ArbiterNode, gpus: Path, symbol: str, orders: tuple[str, str], threads: bool
) -> None:
    for _ in range(WINDOWS):
        sliced = await together(node, gpus, symbol, orders, threads=threads, preload=())
        got = await together(node, gpus, symbol, orders, threads=threads, preload=(container.LIBRARY,))
        if sum(got) >= LEAST_PART * sum(sliced) and min(got) >= max(got) / 2:
            return
    raise AssertionError(f"{got} steps with leases, {sliced} without")
