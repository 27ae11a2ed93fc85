"""What calls cost through the library, what a start costs, what is there again after a SIGKILL."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE, OURS, Mode
from bench.gpu.tenants import BUILT, ProgramError

CALLS = (
    "launch",
    "launch_per_thread",
    "launch_ex",
    "graph_launch",
    "alloc_pair",
    "alloc_pair_4000_live",
    "alloc_async_pair",
)
STARTS = 16
RECLAIMED = 4 << 30


async def calls(bench: Bench) -> None:
    """Nanoseconds a call, with and without the library in turn; and beside a neighbour, when launches are counted."""
    columns: dict[str, dict[str, list[float]]] = {}
    modes = (NATIVE, OURS, *bench.peers)
    for _ in range(bench.rounds):
        for mode in modes:
            await _calls(bench, mode, mode.name, columns)
    async with bench.gpu.holding([BUILT / "load", "idle", "1000"], "ready", bench.gpu.give(request=50)):
        await _calls(bench, OURS, "shared", columns)
    rows = []
    for name in CALLS:
        native = columns[NATIVE.name][name]
        row = [name]
        for column, measured in columns.items():
            value = bench.report.add(f"calls.{name}.{column}", measured[name], "ns")
            row.append(f"{value:.0f} ({min(measured[name]):.0f} to {max(measured[name]):.0f})")
        pairs = zip(columns[OURS.name][name], native, strict=True)
        row.append(f"{bench.report.add(f'calls.{name}.added', [ours - bare for ours, bare in pairs], 'ns'):.0f}")
        rows.append(row)
    bench.report.table("Nanoseconds a call: median (least to most)", ["", *columns, f"{OURS.name} adds"], rows)


async def _calls(bench: Bench, mode: Mode, column: str, columns: dict[str, dict[str, list[float]]]) -> None:
    output = (await bench.gpu.run(mode, [BUILT / "calls"])).stdout
    costs = dict(line.split() for line in output.splitlines())
    for name in CALLS:
        columns.setdefault(column, {}).setdefault(name, []).append(float(costs[name]))


async def starts(bench: Bench) -> None:
    """Sixteen processes of one container from their start to the end of a first kernel, all at once."""
    took: dict[str, list[float]] = {}
    for _ in range(bench.rounds):
        for mode in (NATIVE, OURS, *bench.peers):
            share = bench.gpu.give(request=50) if mode.ours else None
            begun = time.monotonic()
            runs = [bench.gpu.run(mode, [BUILT / "load", "idle", "1000"], share) for _ in range(STARTS)]
            await asyncio.gather(*runs)
            took.setdefault(mode.name, []).append((time.monotonic() - begun) * 1000)
    rows = [[name, f"{bench.report.add(f'start.{STARTS}.{name}', ms, 'ms'):.0f}"] for name, ms in took.items()]
    bench.report.table(f"{STARTS} processes from start to end, all at once", ["", "ms"], rows)


async def reclaim(bench: Bench) -> None:
    """A process that holds all of a share is killed: when the next one of its container has started and holds it."""
    took = []
    command: list[str | Path] = [BUILT / "fill", "plain", str(RECLAIMED)]
    for _ in range(bench.rounds + 2):
        share = bench.gpu.give(memory_bytes=RECLAIMED)
        async with bench.gpu.holding(command, "filled", share) as (holder, line):
            held = int(line.split()[1])  # less than the share, by what its context takes
            holder.kill()
            begun = time.monotonic()
            while int((await bench.gpu.run(OURS, command, share)).stdout.split()[1]) < held:
                if time.monotonic() > begun + 20:
                    raise ProgramError("memory of a killed process is not given back")
            took.append((time.monotonic() - begun) * 1000)
    bench.report.say(
        f"\nkilled holding 4 GiB: the next process has started and holds it after {max(took):.0f} ms at most"
    )
    bench.report.add("reclaim.memory", took, "ms", against="goal", goal=1000.0)
