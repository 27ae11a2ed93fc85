"""The cost for a neighbour of processes that are killed in the middle of their kernels, with and without gpushare.

On one simulated GPU run tests/hostile/neighbour.py, with a request of 40 % and kernels of a millisecond, and two
processes of tests/hostile/attacks.py, with a request of 50 %: `long` runs kernels of twenty milliseconds without
interruption; `killed` runs the same kernels, is killed during them, and starts again. `honest` has kernels of a
millisecond. The difference between `killed` and `long` is the cost of the kills.

Run: `python bench/killed.py [--seconds S] [--rounds N]`. Prints a table, then one JSON object a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import tabulate
from launches import node

ROOT = Path(__file__).resolve().parent.parent
MEMORY_BYTES = 2 << 30
NEIGHBOUR_PERCENT, ATTACKER_PERCENT = 40, 50
BESIDE = ("nobody", "honest", "long", "killed")
WARM_SECONDS = 1.5
MAX_SECONDS = 120
HEAD = ("beside", "kernels/s", "of beside long", "let have %", "p50 ms", "p99 ms", "max ms")


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The neighbour's kernels a second, and how late each was, in microseconds, sorted."""

    rate: float
    late_us: Sequence[int]
    had: float  # the part of the time for which the arbiter granted it the GPU

    def late_ms(self, part: float) -> float:
        """Return a quantile of the lateness."""
        return self.late_us[min(len(self.late_us) - 1, int(part * len(self.late_us)))] / 1e3


async def window(where: node.Node, name: str, seconds: float, *, native: bool) -> Window:
    """Run the neighbour next to two processes of this attack; with `native` none of them has the library."""
    box = dataclasses.replace(where.box, preload=()) if native else where.box
    programs = {"PYTHONPATH": str(ROOT)}
    python = [sys.executable, "-m"]
    neighbour_is = where.give(NEIGHBOUR_PERCENT, 100, memory=MEMORY_BYTES) | programs
    attacker_is = where.give(ATTACKER_PERCENT, 100, memory=MEMORY_BYTES) | programs
    running = [box.start([*python, "tests.hostile.neighbour", "work"], neighbour_is)]
    if name != "nobody":
        attack = [*python, "tests.hostile.attacks", name, str(MAX_SECONDS)]
        running += [box.start(attack, attacker_is) for _ in range(2)]
    try:
        await asyncio.sleep(WARM_SECONDS)
        begin = time.monotonic()
        had_seconds = _had_seconds(where)
        await asyncio.sleep(seconds)
        end, had_seconds = time.monotonic(), _had_seconds(where) - had_seconds
    finally:
        for process, how in zip(running, (signal.SIGTERM, signal.SIGALRM, signal.SIGALRM), strict=False):
            process.send_signal(how)  # an attack that gets this signal ends its children too
        said, *_ = [(await asyncio.to_thread(_ended, process)) for process in running]
    lines = [json.loads(line) for line in said.splitlines() if line.endswith("}")]
    within = [line for line in lines if begin <= line.get("at", 0) <= end]
    late_us = sorted(late for line in within[1:] for late in line["late_us"])
    return Window(len(late_us) / (within[-1]["at"] - within[0]["at"]), late_us, had_seconds / (end - begin))


def _had_seconds(where: node.Node) -> float:
    """Return the neighbour's GPU seconds, found by its request; 0 where no process uses the arbiter."""
    held = where.arbiter.server.leases.usage()
    return sum(usage.had_seconds for usage in held if usage.tenant.grants[0].request_percent == NEIGHBOUR_PERCENT)


def _ended(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=30)[0]


async def measure(seconds: float, rounds: int) -> None:
    """Measure and print everything."""
    node.build()
    async with node.opened() as where:
        for how, native in (("with gpushare", False), ("without", True)):
            measured: dict[str, list[Window]] = {name: [] for name in BESIDE}
            for _ in range(rounds):
                for name in BESIDE:
                    measured[name].append(await window(where, name, seconds, native=native))
            _print(how, measured)


def _print(how: str, measured: dict[str, list[Window]]) -> None:
    rows: list[list[object]] = []
    for name, windows in measured.items():
        ratio = statistics.median(own.rate / beside.rate for own, beside in zip(windows, measured["long"], strict=True))
        late = [statistics.median(window.late_ms(part) for window in windows) for part in (0.5, 0.99, 1)]
        rate = statistics.median(window.rate for window in windows)
        had = round(100 * statistics.median(window.had for window in windows))
        rows.append([name, round(rate), f"{ratio:.2f}", had or "", *(round(late_ms, 1) for late_ms in late)])
    print(f"\n{how}:\n\n{tabulate.tabulate(rows, HEAD, tablefmt='github')}\n", flush=True)
    for row in rows:
        figure = f"killed.{how.split()[0]}.{row[0]}"
        print(json.dumps({"figure": figure, "value": row[1], "unit": "1/s", "against": "long", "ratio": row[2]}))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--seconds", type=float, default=4.0, help="for each case (%(default)s)")
    options.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    arguments = options.parse_args()
    asyncio.run(measure(arguments.seconds, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
