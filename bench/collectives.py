"""What tenants get done whose kernels wait for each other across GPUs, with leases and by the driver's own time slices.

    python -m bench.collectives [--seconds 3]

The real library and arbiter over simulated GPUs. A step is a kernel of 2 ms on each GPU of a tenant, which ends when
all of them have begun. Compared, in one run, with the same programs without the library, by kernels a second.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from gpushare.allocation import GivenShare
from tests.deviceplugin import arbiter_node, simulated
from tests.interposer import container

NODE = (
    "[node]\nname = bench\n[gpu 0]\ncount = 4\nmodel = NVIDIA A100-SXM4-40GB\nmemory = 4GiB\ncompute-capability = 8.0\n"
)
STEPS = """
import sys, threading, time
c = Cuda()
PTR = ctypes.c_void_p
seconds, kernel, threads = float(sys.argv[1]), sys.argv[2], sys.argv[4] == "True"
order = [int(each) for each in sys.argv[3]]
functions = {}
for device in order:
    c.use(device)
    module, functions[device] = PTR(), PTR()
    c.check("cuModuleLoadData", ctypes.byref(module), b"")
    c.check("cuModuleGetFunction", ctypes.byref(functions[device]), module, kernel.encode())
print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + seconds
def launch(device):
    c.use(device)
    c.check("cuLaunchKernel", functions[device], 1, 1, 1, 1, 1, 1, 0, None, None, None)
def wait(device):
    c.use(device)
    c.check("cuCtxSynchronize")
steps, all_of_them, going_on = 0, threading.Barrier(len(order)), True
def rank(device):
    global steps, going_on
    while going_on:
        launch(device)
        wait(device)
        if device == order[0]:
            steps += 1
            going_on = time.monotonic() < until
        all_of_them.wait()
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


@dataclasses.dataclass(frozen=True)
class Tenant:
    """A share of these GPUs, and how its program launches on them."""

    name: str
    cards: str
    request: int = 50
    threads: bool = False
    backwards: bool = False


def gangs(cards: str, *, threads: bool, backwards: bool = False, request: int = 50) -> tuple[Tenant, ...]:
    """Two tenants on the same GPUs; backwards: the second launches in the opposite order."""
    return (Tenant("a", cards, request, threads), Tenant("b", cards, 100 - request, threads, backwards))


CASES = {
    "2 GPUs, a thread each": gangs("01", threads=True),
    "2 GPUs, one thread, crosswise": gangs("01", threads=False, backwards=True),
    "3 GPUs, a thread each, 30/70": gangs("012", threads=True, backwards=True, request=30),
    "4 GPUs, a thread each": gangs("0123", threads=True),
    "4 GPUs, one thread, crosswise": gangs("0123", threads=False, backwards=True),
    "4 GPUs, beside four single ones": (
        Tenant("gang", "0123", 50, threads=True),
        *(Tenant(f"one-{card}", str(card)) for card in range(4)),
    ),
}


async def run(tenants: tuple[Tenant, ...], seconds: float, *, leases: bool) -> dict[str, float]:
    """Steps a second, by tenant."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch)
        (directory / "node.ini").write_text(NODE)
        gpus = directory / "gpus"
        await simulated.change("create", directory / "node.ini", gpus)
        uuids = simulated.uuids(gpus)
        async with arbiter_node.opened(directory) as node:
            node.server.leases.settle()
            box = container.Container(node.socket.parent, gpus, (container.LIBRARY,) if leases else ())
            return await _rates(node, box, tenants, uuids, seconds)


async def _rates(
    node: arbiter_node.ArbiterNode,
    box: container.Container,
    tenants: tuple[Tenant, ...],
    uuids: list[str],
    seconds: float,
) -> dict[str, float]:
    processes: list[subprocess.Popen[str]] = []
    for tenant in tenants:
        given = tuple(uuids[int(card)] for card in tenant.cards)
        node.add_pod(tenant.name, GivenShare(("main",), given, tenant.request, 100, 1 << 28))
        environment = {
            "TEST_POD": tenant.name,
            "TEST_CONTAINER": "main",
            "CUDA_VISIBLE_DEVICES": ",".join(tenant.cards),
        }
        places = "".join(str(place) for place in range(len(tenant.cards)))
        kernel = f"meet{len(tenant.cards)}_2ms" if len(tenant.cards) > 1 else "spin_2ms"
        words = [str(seconds), kernel, places[::-1] if tenant.backwards else places, str(tenant.threads)]
        processes.append(box.start([sys.executable, "-c", container.CLIENT_PRELUDE + STEPS, *words], environment))
    for process in processes:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
    answers = await asyncio.gather(*(asyncio.to_thread(each.communicate, "\n", timeout=60) for each in processes))
    return {tenant.name: int(said) / seconds for tenant, (said, _) in zip(tenants, answers, strict=True)}


def _kernels(steps: dict[str, float], tenants: tuple[Tenant, ...]) -> float:
    return sum(steps[tenant.name] * len(tenant.cards) for tenant in tenants)


async def measure(seconds: float) -> None:
    """Run all cases and print them."""
    simulated.build()
    figures = []
    print(f"{'case':<34}{'steps/s of each, with leases':<32}{'kernels/s':>10}{'sliced':>8}{'ratio':>7}")
    for name, tenants in CASES.items():
        sliced = _kernels(await run(tenants, seconds, leases=False), tenants)
        got = await run(tenants, seconds, leases=True)
        total = _kernels(got, tenants)
        steps = ", ".join(f"{each:.0f}" for each in got.values())
        print(f"{name:<34}{steps:<32}{total:>10.0f}{sliced:>8.0f}{total / sliced:>7.2f}")
        figures.append({"figure": f"collectives.{name}", "value": round(total, 1), "unit": "kernels/s"})
        figures[-1] |= {"against": "time slicing", "ratio": round(total / sliced, 3)}
    for figure in figures:
        print(json.dumps(figure))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case, twice")
    asyncio.run(measure(parser.parse_args().seconds))


if __name__ == "__main__":
    main()
