"""Programs whose kernels wait for later launches, with and without the library, next to idle and busy neighbours.

The shipped library and arbiter run; only the GPUs are simulated. Each program has two GPUs, like a rank with two: a
kernel on one waits for its partner on the other, with small kernels queued behind it. The program requests half of each
GPU. A busy neighbour requests the other half of one GPU and always wants it.

Prints two tables, then one JSON object a line per figure: rounds a second with the library in percent of those without
it, where the driver's own time slices decide; and, next to busy neighbours, also in percent of half of the rate without
neighbours.

Run: `python bench/dependent.py [--runs N]`; a run takes a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launches import node as nodes
from launches.node import Node
from launches.report import Report

from gpushare.allocation import GivenShare
from tests.interposer import container

PROGRAM = nodes.BUILT / "dependent"
# The launching threads, the small kernels behind the waiting one, and the rounds: about two seconds natively.
CASES = (("thread", 8, 3000), ("thread", 20, 2400), ("thread", 600, 250), ("threads", 600, 250))
GOAL_PERCENT = 90.0


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """Busy neighbours: `load`'s mode, microseconds a kernel, and the GPUs; each GPU gets one."""

    name: str
    mode: str
    kernel_us: int
    gpus: tuple[int, ...]
    case: tuple[str, int, int]


TWO_THREADS = ("threads", 600, 250)
BUSY = (
    Beside("async 2 ms on one", "async", 2000, (0,), TWO_THREADS),
    Beside("async 2 ms on both", "async", 2000, (0, 1), TWO_THREADS),
    Beside("sync 2 ms on both", "sync", 2000, (0, 1), TWO_THREADS),
    Beside("sync 0.2 ms on one", "sync", 200, (0,), ("thread", 600, 250)),
)
FOR_EVER_MS = 3_600_000


def build() -> None:
    """Build all measured programs."""
    nodes.build()
    driver = [f"-L{container.DRIVERS}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined", "-pthread"]
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", PROGRAM, nodes.SOURCES / "dependent.c", *driver], check=True)


async def rounds_a_second(node: Node, case: tuple[str, int, int], *, native: bool) -> float:
    """Return the rounds a second of one run."""
    box = dataclasses.replace(node.box, preload=()) if native else node.box
    environment = node.give(50, 100)
    name = environment["TEST_POD"]
    share = GivenShare(("main",), tuple(node.uuids[:2]), 50, 100, nodes.MEMORY_BYTES)
    node.arbiter.add_pod(f"{name}-both", share)
    environment |= {"TEST_POD": f"{name}-both", "CUDA_VISIBLE_DEVICES": "0,1"}
    process = box.start([PROGRAM, *map(str, case)], environment)
    with container.finishing(process):
        await asyncio.to_thread(nodes.until_ready, process)
        output, errors = await asyncio.to_thread(process.communicate, "\n", timeout=120)
    assert process.returncode == 0, errors
    return case[2] / float(output)


@contextlib.asynccontextmanager
async def neighbour(node: Node, gpu: int) -> AsyncIterator[None]:
    """Run a process of another share that has used a GPU and now sleeps."""
    process = node.box.start([container.PROBE, "--kernels", "1", "--hold", "300"], node.give(10, 100, gpu=gpu))
    with container.finishing(process):
        await asyncio.to_thread(nodes.until_holding, process)
        yield


@contextlib.asynccontextmanager
async def busy(node: Node, beside: Beside, *, native: bool) -> AsyncIterator[None]:
    """Run busy neighbours while the context lasts."""
    box = dataclasses.replace(node.box, preload=()) if native else node.box
    with contextlib.ExitStack() as stack:
        for gpu in beside.gpus:
            words = (nodes.BUILT / "load", beside.mode, str(beside.kernel_us))
            process = stack.enter_context(container.finishing(box.start(words, node.give(50, 100, gpu=gpu))))
            await asyncio.to_thread(nodes.until_ready, process)
            assert process.stdin is not None
            now = int(time.monotonic() * 1000)
            process.stdin.write(f"{now} {now} {now + FOR_EVER_MS}\n")
            process.stdin.flush()
        yield


async def beside_idle(node: Node, runs: int, report: Report) -> dict[tuple[str, int], float]:
    """Run each case in turn without and with the library; return the rates without it, by case."""
    report.say(f"{'launched by':<12}{'small ones':>11}{'without, /s':>13}{'with, /s':>10}{'of it, %':>10}")
    alone = {}
    for case in CASES:
        rates: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(runs):
            for native in (True, False):
                rates[native].append(await rounds_a_second(node, case, native=native))
        bare, ours = (statistics.median(rates[native]) for native in (True, False))
        percent = 100 * ours / bare
        report.say(f"{case[0]:<12}{case[1]:>11}{bare:>13.0f}{ours:>10.0f}{percent:>10.1f}")
        report.add(f"dependent.{case[0]}.{case[1]}", percent, "%", goal=GOAL_PERCENT)
        alone[case[:2]] = bare
    return alone


async def beside_busy(node: Node, runs: int, alone: dict[tuple[str, int], float], report: Report) -> None:
    """Run the cases next to busy neighbours; `alone` gives each program's rate without neighbours."""
    report.say()
    heading = f"{'neighbours':<20}{'launched by':>12}{'without, /s':>13}{'with, /s':>10}{'of it, %':>10}"
    report.say(f"{heading}{'of its half, %':>16}")
    for beside in BUSY:
        rates: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(runs):
            for native in (True, False):
                async with busy(node, beside, native=native):
                    rates[native].append(await rounds_a_second(node, beside.case, native=native))
        bare, ours = (statistics.median(rates[native]) for native in (True, False))
        percent, of_half = 100 * ours / bare, 200 * ours / alone[beside.case[:2]]
        row = f"{beside.name:<20}{beside.case[0]:>12}{bare:>13.0f}{ours:>10.0f}"
        report.say(f"{row}{percent:>10.1f}{of_half:>16.1f}")
        report.add(f"dependent.beside.{beside.name}", percent, "%", goal=100.0, against="time slicing")
        report.add(f"dependent.half.{beside.name}", of_half, "%", goal=GOAL_PERCENT)


async def measure(runs: int, report: Report) -> None:
    """Print both tables. The idle neighbours ensure that no busy one starts alone, when it could queue without
    limit.
    """
    async with nodes.opened() as node, neighbour(node, 0), neighbour(node, 1):
        node.arbiter.server.leases.settled_ns = 0
        alone = await beside_idle(node, runs, report)
        await beside_busy(node, runs, alone, report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=1, help="runs of each case, with and without the library (%(default)s)"
    )
    arguments = parser.parse_args()
    build()
    report = Report(0.0)
    asyncio.run(measure(arguments.runs, report))
    report.say()
    report.print_figures()


if __name__ == "__main__":
    main()
