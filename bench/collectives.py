"""Throughput of tenants whose kernels wait for each other across GPUs, with leases and with the driver's time slices.

    python -m bench.collectives [--seconds 3] [--plot FILE.svg]

The real library and arbiter run over simulated GPUs. A step is a kernel of 2 ms on each of a tenant's GPUs; it ends
once all of them have started. The same run measures the same programs without the library; kernels a second are
compared. In the last cases each rank is a pod; its kernels meet those of its group, even on a node with another
arbiter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
from pathlib import Path

from gpushare.allocation import GivenShare
from tests.deviceplugin import arbiter_node, simulated
from tests.deviceplugin.arbiter.programs import collectives
from tests.interposer import container
from tests.programs import command

NODE = (
    "[node]\nname = bench\n[gpu 0]\ncount = 4\nmodel = NVIDIA A100-SXM4-40GB\nmemory = 4GiB\ncompute-capability = 8.0\n"
)
GOAL = 0.9
Place = tuple[arbiter_node.ArbiterNode, container.Container]


@dataclasses.dataclass(frozen=True)
class Tenant:
    """A share of these GPUs, and how its program launches kernels on them."""

    name: str
    gpus: str
    request: int = 50
    threads: bool = False
    backwards: bool = False
    group: str = ""
    ranks: int = 1  # in its group
    node: int = 0


def groups(ranks: int, *, nodes: int) -> tuple[Tenant, ...]:
    """Return two groups with a pod on each GPU; the GPUs are divided equally among the nodes."""
    return tuple(
        Tenant(f"{group}{gpu}", str(gpu), group=group, ranks=ranks, node=gpu * nodes // ranks)
        for gpu in range(ranks)
        for group in "ab"
    )


def gangs(gpus: str, *, threads: bool, backwards: bool = False, request: int = 50) -> tuple[Tenant, ...]:
    """Return two tenants on the same GPUs; with `backwards` the second launches in the opposite order."""
    return (Tenant("a", gpus, request, threads), Tenant("b", gpus, 100 - request, threads, backwards))


CASES: dict[str, tuple[Tenant, ...]] = {
    "2 GPUs, a thread each": gangs("01", threads=True),
    "2 GPUs, one thread, crosswise": gangs("01", threads=False, backwards=True),
    "3 GPUs, a thread each, 30/70": gangs("012", threads=True, backwards=True, request=30),
    "4 GPUs, a thread each": gangs("0123", threads=True),
    "4 GPUs, one thread, crosswise": gangs("0123", threads=False, backwards=True),
    "4 GPUs, beside four single ones": (
        Tenant("gang", "0123", 50, threads=True),
        *(Tenant(f"one-{gpu}", str(gpu)) for gpu in range(4)),
    ),
    "2 groups of 2 pods": groups(2, nodes=1),
    "2 groups of 4 pods": groups(4, nodes=1),
    "2 groups of 2 pods, on 2 nodes": groups(2, nodes=2),
    "2 groups of 4 pods, on 2 nodes": groups(4, nodes=2),
}


async def run(tenants: tuple[Tenant, ...], seconds: float, *, leases: bool) -> dict[str, float]:
    """Return the steps a second by tenant."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch)
        (directory / "node.ini").write_text(NODE)
        gpus = directory / "gpus"
        await simulated.change("create", directory / "node.ini", gpus)
        uuids = simulated.uuids(gpus)
        async with contextlib.AsyncExitStack() as stack:
            places: list[Place] = []
            for number in range(1 + max(tenant.node for tenant in tenants)):
                (directory / str(number)).mkdir()
                node = await stack.enter_async_context(arbiter_node.opened(directory / str(number)))
                node.server.leases.settled_ns = 0
                library = (container.LIBRARY,) if leases else ()
                places.append((node, container.Container(node.socket.parent, gpus, library)))
            return await _rates(places, tenants, uuids, seconds)


async def _rates(
    places: list[Place], tenants: tuple[Tenant, ...], uuids: list[str], seconds: float
) -> dict[str, float]:
    processes: list[subprocess.Popen[str]] = []
    seen: dict[str, int] = {}
    for tenant in tenants:
        node, box = places[tenant.node]
        gpus = tuple(uuids[int(gpu)] for gpu in tenant.gpus)
        share = GivenShare(("main",), gpus, tenant.request, 100, 1 << 28)
        node.add_pod(tenant.name, share, group=tenant.group)
        environment = {
            "TEST_POD": tenant.name,
            "TEST_CONTAINER": "main",
            "CUDA_VISIBLE_DEVICES": ",".join(tenant.gpus),
        }
        order = tuple(range(len(tenant.gpus)))
        kernel, rank, said = f"meet{len(order)}_2ms" if len(order) > 1 else "spin_2ms", 0, ""
        if tenant.group:
            rank = seen[tenant.group] = seen.get(tenant.group, -1) + 1
            path = places[0][0].directory / tenant.group
            path.touch()
            os.truncate(path, 8)
            kernel, said = f"meet{tenant.ranks}_{tenant.group}_2ms", str(path)
        way = order[::-1] if tenant.backwards else order
        program = command(
            collectives.steps, "cuLaunchKernel", seconds, way, tenant.threads, kernel, rank=rank, said=said
        )
        processes.append(box.start(program, environment))
    for process in processes:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [await asyncio.to_thread(process.communicate, timeout=60) for process in processes]
    return {tenant.name: int(said) / seconds for tenant, (said, _) in zip(tenants, answers, strict=True)}


def _kernels(steps: dict[str, float], tenants: tuple[Tenant, ...]) -> float:
    return sum(steps[tenant.name] * len(tenant.gpus) for tenant in tenants)


async def measure(seconds: float) -> dict[str, float]:
    """Run and print all cases, and return the ratios by case."""
    simulated.build()
    figures, ratios = [], dict[str, float]()
    print(f"{'case':<34}{'steps/s of each, with leases':<32}{'kernels/s':>10}{'sliced':>8}{'ratio':>7}")
    for name, tenants in CASES.items():
        sliced = _kernels(await run(tenants, seconds, leases=False), tenants)
        got = await run(tenants, seconds, leases=True)
        total = _kernels(got, tenants)
        steps = ", ".join(f"{rate:.0f}" for rate in got.values())
        print(f"{name:<34}{steps:<32}{total:>10.0f}{sliced:>8.0f}{total / sliced:>7.2f}")
        figures.append({"figure": f"collectives.{name}", "value": round(total, 1), "unit": "kernels/s"})
        figures[-1] |= {"against": "time slicing", "ratio": round(total / sliced, 3)}
        ratios[name] = total / sliced
    for figure in figures:
        print(json.dumps(figure))
    return ratios


def plot(ratios: dict[str, float], path: Path) -> None:
    """Plot the throughput with leases relative to time slices, one bar per case."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 0.4 * len(ratios) + 1), layout="constrained")
    axis.barh(list(ratios)[::-1], list(ratios.values())[::-1])
    axis.axvline(GOAL, color="black", linestyle="--", linewidth=1)
    axis.set_xlabel("kernels a second with leases, relative to the driver's time slices")
    figure.savefig(path)
    print(f"Plot: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case, measured twice")
    parser.add_argument("--plot", type=Path, help="write a plot to this file, .svg or .png")
    chosen = parser.parse_args()
    ratios = asyncio.run(measure(chosen.seconds))
    if chosen.plot:
        plot(ratios, chosen.plot)


if __name__ == "__main__":
    main()
