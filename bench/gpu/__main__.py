"""gpushare on a GPU: what it costs, how true shares and limits are, beside the bare GPU and other libraries.

    python -m bench.gpu [--minutes 9] [--only NAME,...] [--peer NAME=PATH[,VARIABLE=VALUE...]] [--simulated]

Run in the root of a checkout, as root. Results go to bench/results/; see bench/gpu/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from bench.gpu import costs, frameworks, machine, memory, modes, pairs, shares, tenants
from bench.gpu.bench import Bench
from bench.gpu.report import RESULTS, Report

# What takes its time whatever the arguments, and what takes a case's time so and so often: for the length of a case.
CASES: Mapping[str, tuple[Callable[[Bench], Awaitable[None]], int, int]] = {
    "calls": (costs.calls, 20, 0),
    "splits": (shares.splits, 12, 12),
    "caps": (shares.caps, 20, 16),
    "elasticity": (shares.elasticity, 6, 4),
    "latency": (shares.latency, 6, 4),
    "memory": (memory.exactness, 15, 0),
    "reclaim": (costs.reclaim, 8, 0),
    "starts": (costs.starts, 10, 0),
    "handover": (shares.handover, 8, 6),
    "torch": (frameworks.torch, 140, 28),
    "pairs": (pairs.pairs, 150, 15),
}
WARM_MS = 1500
DRY_WARM_MS = 200
SHORTEST, LONGEST = 0.3, 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="how long it may take (%(default)s)")
    parser.add_argument("--only", default=",".join(CASES), help="comma list (%(default)s)")
    parser.add_argument("--peer", action="append", default=[], type=modes.parse_peer, metavar="NAME=PATH[,...]")
    parser.add_argument("--simulated", action="store_true", help="a dry run on a simulated GPU")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go (%(default)s)")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    if os.geteuid() != 0:
        parser.error("run it as root: each program gets a mount namespace of its own, as in a container")
    with tempfile.TemporaryDirectory(prefix="gpushare-") as scratch:
        try:
            which = machine.simulated(Path(scratch)) if arguments.simulated else machine.real()
        except machine.NoGpuError as error:
            sys.exit(f"{error}; --simulated makes a dry run")
        tenants.build()
        report = Report(which.describe(), datetime.datetime.now(datetime.UTC).date())
        asyncio.run(_measure(which, Path(scratch), names, arguments.peer, arguments.minutes * 60, report))
    for figure in report.figures:
        print(json.dumps(figure))
    print(f"\n{report.write(arguments.results)}")


async def _measure(
    which: machine.Machine,
    scratch: Path,
    names: Sequence[str],
    peers: Sequence[modes.Mode],
    budget_seconds: float,
    report: Report,
) -> None:
    deadline = time.monotonic() + budget_seconds
    warm_ms = DRY_WARM_MS if which.simulated else WARM_MS
    fixed = sum(CASES[name][1] for name in names)
    times = sum(CASES[name][2] for name in names) * (1 + len(peers)) + 4  # the four workloads alone
    seconds = max(SHORTEST, min(LONGEST, (budget_seconds - fixed) / times - warm_ms / 1000 - 0.5))
    loops = tenants.calibrate(which)
    for name, value in report.machine.items():
        report.say(f"{name}: {value}")
    report.say(f"{seconds:.1f} seconds a case, load {os.getloadavg()[0]:.1f}, peers: {[peer.name for peer in peers]}")
    for name in names:
        if time.monotonic() > deadline:
            report.say(f"\n{name}: left out, the {budget_seconds / 60:g} minutes are over")
            continue
        directory = scratch / name
        directory.mkdir()
        # A node of its own for each case: shares of the one before have no debts and no credits in it.
        async with tenants.opened(which, directory, loops) as gpu:
            bench = Bench(gpu, report, seconds, warm_ms, rounds=3 if budget_seconds > 120 else 1, peers=peers)
            await _case(name, bench)


async def _case(name: str, bench: Bench) -> None:
    """One that fails is told of, and the next one begins."""
    begun = time.monotonic()
    try:
        await CASES[name][0](bench)
    except Exception as error:
        bench.report.say(f"\n{name}: failed: {type(error).__name__}: {error}")
        bench.report.add(f"{name}.failed", 1, "")
    print(f"({name}: {time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
