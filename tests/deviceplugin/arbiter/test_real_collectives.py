"""Two tenants whose kernels wait for each other across two GPUs, as the collectives of training do: nobody waits for ever."""

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

# A step is a kernel on either GPU; each keeps its GPU busy until the other one has begun. Says how many it did.
STEPS = """
import sys, time
c = Cuda()
PTR = ctypes.c_void_p
symbol, seconds, order = sys.argv[1], float(sys.argv[2]), [int(each) for each in sys.argv[3]]
functions = {}
for device in order:
    c.use(device)
    module, functions[device] = PTR(), PTR()
    c.check("cuModuleLoadData", ctypes.byref(module), b"")
    c.check("cuModuleGetFunction", ctypes.byref(functions[device]), module, b"meet2_500us")
print("ready", flush=True)
sys.stdin.readline()
steps, until = 0, time.monotonic() + seconds
while time.monotonic() < until:
    for device in order:
        c.use(device)
        c.check(symbol, functions[device], 1, 1, 1, 1, 1, 1, 0, None, *[None] * (2 - ("Cooperative" in symbol)))
    for device in order:
        c.use(device)
        c.check("cuCtxSynchronize")
    steps += 1
print(steps)
"""


@pytest.fixture(autouse=True)
def _built() -> None:
    simulated.build()
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)


async def together(node: ArbiterNode, gpus: Path, symbol: str, orders: tuple[str, str]) -> list[int]:
    """How many steps each of two tenants did, which launch on the two GPUs in these orders."""
    box = container.Container(node.socket.parent, gpus)
    uuids = tuple(simulated.uuids(gpus)[:2])
    processes = []
    try:
        for name, order in zip(("one", "two"), orders, strict=True):
            node.add_pod(name, GivenShare(("main",), uuids, 50, 100, 1 << 28))
            environment = {"TEST_POD": name, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0,1"}
            command = [sys.executable, "-c", container.CLIENT_PRELUDE + STEPS, symbol, "3", order]
            processes.append(box.start(command, environment))
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


@pytest.mark.parametrize("symbol", ["cuLaunchKernel", "cuLaunchCooperativeKernel"])
@pytest.mark.parametrize("orders", [("01", "01"), ("01", "10")], ids=["the same order", "crosswise"])
async def test_two_tenants_with_collectives_across_two_gpus_both_go_on(
    node: ArbiterNode, gpus: Path, symbol: str, orders: tuple[str, str]
) -> None:
    # Each has both GPUs, or is let in beside the other after 100 ms; so a step takes a few of those at most.
    assert min(await together(node, gpus, symbol, orders)) >= 3
