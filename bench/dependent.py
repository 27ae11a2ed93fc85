"""Programs whose kernels wait for others launched later, with and without the library, beside an idle neighbour.

What ships runs here, library and arbiter; only the GPUs are simulated. Each program has two GPUs, as a rank with two of
them has: a kernel on one waits for its partner on the other, with small ones behind it. Prints a table, then one JSON
object a line per figure: rounds a second with the library in percent of those without.

Run: `python bench/dependent.py [--runs N]`; a run takes a quarter of a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launches import node as nodes
from launches.node import Node
from launches.report import Report

from gpushare.allocation import GivenShare
from tests.interposer import container

PROGRAM = nodes.BUILT / "dependent"
# Who launches, how many small kernels are behind the one that waits, how many rounds: about two seconds natively.
CASES = (("thread", 8, 3000), ("thread", 20, 2400), ("thread", 600, 250), ("threads", 600, 250))
GOAL_PERCENT = 90.0


def build() -> None:
    """Everything that is measured."""
    nodes.build()
    driver = [f"-L{container.DRIVERS}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined", "-pthread"]
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", PROGRAM, nodes.SOURCES / "dependent.c", *driver], check=True)


async def rounds_a_second(node: Node, case: tuple[str, int, int], *, native: bool) -> float:
    """Of one run."""
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
    """Another share's process that has used a GPU and now sleeps."""
    process = node.box.start([container.PROBE, "--kernels", "1", "--hold", "300"], node.give(10, 100, gpu=gpu))
    with container.finishing(process):
        await asyncio.to_thread(nodes.until_holding, process)
        yield


async def measure(runs: int, report: Report) -> None:
    """Each case, by turns without the library and with it."""
    report.say(f"{'launched by':<12}{'small ones':>11}{'without, /s':>13}{'with, /s':>10}{'of it, %':>10}")
    async with nodes.opened() as node, neighbour(node, 0), neighbour(node, 1):
        for case in CASES:
            rates: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(runs):
                for native in (True, False):
                    rates[native].append(await rounds_a_second(node, case, native=native))
            bare, ours = (statistics.median(rates[native]) for native in (True, False))
            percent = 100 * ours / bare
            report.say(f"{case[0]:<12}{case[1]:>11}{bare:>13.0f}{ours:>10.0f}{percent:>10.1f}")
            report.add(f"dependent.{case[0]}.{case[1]}", percent, "%", goal=GOAL_PERCENT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1, help="of each case, with and without (%(default)s)")
    arguments = parser.parse_args()
    build()
    report = Report(0.0)
    asyncio.run(measure(arguments.runs, report))
    report.say()
    report.print_figures()


if __name__ == "__main__":
    main()
