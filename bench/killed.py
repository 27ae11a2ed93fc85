"""What processes that are killed in the middle of their kernels cost a neighbour, with gpushare and without it.

Beside each other on one simulated GPU: the neighbour of tests/hostile/neighbour.py, with a request of 40 % and kernels
of a millisecond, and two processes of tests/hostile/attacks.py, with a request of 50 %: `long` runs kernels of twenty
milliseconds and is left alone; `killed` runs the same, is killed with them, and begins again. `honest` has kernels of a
millisecond. What `killed` costs beyond `long` is what the killing costs.

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
    """What the neighbour got done in a second, and by how much its kernels were late, in microseconds, sorted."""

    rate: float
    late_us: Sequence[int]
    had: float  # what part of the time the arbiter let it have

    def late_ms(self, part: float) -> float:
        """A quantile."""
        return self.late_us[min(len(self.late_us) - 1, int(part * len(self.late_us)))] / 1e3


async def window(where: node.Node, name: str, seconds: float, *, native: bool) -> Window:
    """The neighbour beside two processes of this name, for so long; `native`: none of them has the library."""
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
            process.send_signal(how)  # an attack that is told to end takes its children along
        said, *_ = [(await asyncio.to_thread(_ended, process)) for process in running]
    lines = [json.loads(line) for line in said.splitlines() if line.endswith("}")]
    within = [line for line in lines if begin <= line.get("at", 0) <= end]
    late_us = sorted(late for line in within[1:] for late in line["late_us"])
    return Window(len(late_us) / (within[-1]["at"] - within[0]["at"]), late_us, had_seconds / (end - begin))


def _had_seconds(where: node.Node) -> float:
    """Of the one whose request is that of the neighbour; nothing where nobody asks the arbiter."""
    held = where.arbiter.server.leases.usage()
    return sum(usage.had_seconds for usage in held if usage.tenant.grants[0].request_percent == NEIGHBOUR_PERCENT)


def _ended(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=30)[0]


async def measure(seconds: float, rounds: int) -> None:
    """Print all of it."""
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
    options.add_argument("--seconds", type=float, default=4.0, help="of each (%(default)s)")
    options.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    arguments = options.parse_args()
    asyncio.run(measure(arguments.seconds, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
