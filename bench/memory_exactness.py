"""How exact the memory limit is: every way to allocate, by one process and by four that race for the same share.

Each process allocates as much as it can, first all at once and then one after another. The simulated GPU then reports
its allocated total: it must never exceed the limit by a byte, and must leave less than one more piece of this way's
allocation size. Library and arbiter are the shipped ones. Prints a table, then one JSON object a line per figure.

Run: `python bench/memory_exactness.py`; it takes a quarter of a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launches import node as nodes
from launches.node import Node
from launches.report import Report

from tests.interposer import container

MIB = 1 << 20
LIMIT_BYTES = 1_234_567_891
# The granularity of simulated GPUs for each way. A mix of all ends with the smallest.
PIECES: Mapping[str, int] = {
    "plain": 1,
    "pitched": 512,
    "managed": 1,
    "async": 32 * MIB,
    "pool": 32 * MIB,
    "handles": 2 * MIB,
    "array": 512,
    "mipmap": 512,
    "graph": 2 * MIB,
    "mixed": 1,
}
PROCESSES = (1, 4)
ASK_GPU = """
import pynvml, sys
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1])
for _ in iter(input, "end"):
    print(pynvml.nvmlDeviceGetMemoryInfo(handle).used, flush=True)
"""
FILL = nodes.BUILT / "fill"


def build() -> None:
    """Build the program that fills the memory."""
    driver = [f"-L{container.DRIVERS}", "-l:libcuda.so.1", "-Wl,--allow-shlib-undefined"]
    source = nodes.SOURCES / "fill.c"
    subprocess.run(["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", FILL, source, *driver], check=True)


def ask(process: subprocess.Popen[str]) -> int:
    """Send a line and return the number in the answer."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return hear(process)


def hear(process: subprocess.Popen[str]) -> int:
    """Read a number."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=10)
    return int(line)


@contextlib.contextmanager
def gpu_of(node: Node) -> Iterator[subprocess.Popen[str]]:
    """Run a process that reports the GPU's used memory as the node sees it."""
    process = subprocess.Popen(
        [sys.executable, "-c", ASK_GPU, node.uuid],
        env={"SIMGPU_DIR": str(node.gpus), "LD_LIBRARY_PATH": str(container.DRIVERS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.communicate("end\n", timeout=10)


def fill(node: Node, way: str, count: int) -> int:
    """Let `count` processes allocate all they can, and return the bytes that the GPU has allocated."""
    environment = node.give(50, 100, memory=LIMIT_BYTES)
    processes = [node.box.start([FILL, way], environment) for _ in range(count)]
    try:
        for process in processes:
            nodes.until_ready(process)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            hear(process)
        for process in processes:
            ask(process)
        with gpu_of(node) as gpu:
            return ask(gpu)
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=10)


async def measure(report: Report) -> None:
    """Measure all ways to allocate."""
    async with nodes.opened() as node:
        report.say(f"a share of {LIMIT_BYTES} bytes: bytes left when allocations are refused")
        report.say(f"{'':<10}{'in pieces of':>14}" + "".join(f"{count:>12} proc." for count in PROCESSES))
        beyond = dict.fromkeys(PROCESSES, 0)
        unused = dict.fromkeys(PROCESSES, 0.0)
        for way, piece in PIECES.items():
            line = f"{way:<10}{piece:>14}"
            for count in PROCESSES:
                left = LIMIT_BYTES - await asyncio.to_thread(fill, node, way, count)
                beyond[count] = max(beyond[count], -left)
                unused[count] = max(unused[count], left / piece)
                line += f"{left:>18}"
            report.say(line)
        for count in PROCESSES:
            report.add(f"memory.beyond.{count}", beyond[count], "B", goal=0.0)
            report.add(f"memory.unused.{count}", unused[count], "pieces", goal=1.0)
    report.say()


def main() -> None:
    """Build, measure and print."""
    nodes.build()
    build()
    report = Report(0.0)
    asyncio.run(measure(report))
    report.print_figures()


if __name__ == "__main__":
    main()
