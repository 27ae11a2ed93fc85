"""The cost of calls and of starting processes, and the time until a killed process's memory is free again."""

from __future__ import annotations

import time
from pathlib import Path

from bench.gpu import workers
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
CALLS_SECONDS = 60.0
BUSY_KERNEL_US = 1000
STARTS = 16
RECLAIMED = 4 << 30


async def calls(bench: Bench) -> None:
    """Time calls natively and in a share in turn, then next to an idle and to a busy neighbour."""
    columns: dict[str, dict[str, list[float]]] = {}
    try:
        for _ in range(bench.rounds):
            for mode in bench.modes:
                with bench.row(f"calls.{mode.name}"):
                    await _calls(bench, mode, mode.name, columns)
        with bench.row("calls.beside_idle"):
            async with bench.gpu.holding([BUILT / "load", "idle", "1000"], "ready", bench.gpu.give(request=50)):
                await _calls(bench, OURS, "beside idle", columns)
        for mode in bench.modes:
            with bench.row(f"calls.{mode.name}.beside_busy"):
                async with bench.gpu.working(mode, BUSY_KERNEL_US, CALLS_SECONDS, 50):
                    await _calls(bench, mode, f"{mode.name}, beside busy", columns)
    finally:
        _show_calls(bench, columns)


def _show_calls(bench: Bench, columns: dict[str, dict[str, list[float]]]) -> None:
    """Add the table, with the columns that were measured."""
    rows = []
    for name in CALLS:
        row = [name]
        for column, measured in columns.items():
            key = column.replace(", ", ".").replace(" ", "_")
            value = bench.report.add(f"calls.{name}.{key}", measured[name], "ns")
            row.append(f"{value:.0f}")
        native, ours = (columns.get(mode.name, {}).get(name, []) for mode in (NATIVE, OURS))
        pairs = list(zip(ours, native, strict=False))
        if pairs:
            added = bench.report.add(f"calls.{name}.added", [mine - bare for mine, bare in pairs], "ns")
            ratios = [mine / bare for mine, bare in pairs]
            ratio = bench.report.add(f"calls.{name}.ratio", ratios, "", against=NATIVE.name)
            row += [f"{added:+.0f}", f"{ratio:.3f}"]
        rows.append([*row, *[""] * (3 + len(columns) - len(row))])
    head = ["", *columns, f"{OURS.name} adds", f"{OURS.name} / {NATIVE.name}"]
    bench.report.table("Nanoseconds a call, medians", head, rows)


async def _calls(bench: Bench, mode: Mode, column: str, columns: dict[str, dict[str, list[float]]]) -> None:
    output = (await bench.gpu.run(mode, [BUILT / "calls"], seconds=CALLS_SECONDS, request=50)).stdout
    costs = dict(line.split() for line in output.splitlines())
    for name in CALLS:
        columns.setdefault(column, {}).setdefault(name, []).append(float(costs[name]))


async def starts(bench: Bench) -> None:
    """Time sixteen processes of one container that start at once, up to the end of their first kernel."""
    took: dict[str, list[float]] = {}
    for _ in range(bench.rounds):
        for mode in bench.modes:
            share = bench.gpu.give(request=50) if mode.ours else None
            begun = time.monotonic()
            runs = [bench.gpu.run(mode, [BUILT / "load", "idle", "1000"], share) for _ in range(STARTS)]
            with bench.row(f"starts.{mode.name}"):
                await workers.gathered(runs)
                took.setdefault(mode.name, []).append((time.monotonic() - begun) * 1000)
    rows = [[name, f"{bench.report.add(f'start.{STARTS}.{name}', ms, 'ms'):.0f}"] for name, ms in took.items()]
    bench.report.table(f"{STARTS} processes from start to end, all at once", ["", "ms"], rows)


async def reclaim(bench: Bench) -> None:
    """Kill a process that holds all of a share, and time the next one until it holds the same."""
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
