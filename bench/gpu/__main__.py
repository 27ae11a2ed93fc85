"""Measures gpushare on a GPU: its cost and the accuracy of its shares and limits, against the bare GPU and peers.

    python3 -m bench.gpu --first|--second [--results DIR] [--peer NAME=PATH[,VARIABLE=VALUE...]] [--simulated]

Run in the root of a checkout, as root. See bench/gpu/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.gpu import (
    costs,
    decoders,
    facts,
    frameworks,
    machine,
    memory,
    modes,
    plan,
    robustness,
    shares,
    tenants,
    trainings,
)
from bench.gpu.bench import Bench
from bench.gpu.plan import Cost
from bench.gpu.report import RESULTS, Report, narrow
from gpushare import contract

NOTHING = Cost(0)


@dataclass(frozen=True, slots=True)
class Case:
    """A case and its cost. per_peer: the cost of each further mode; mps: those with MPS."""

    run: Callable[[Bench], Awaitable[None]]
    cost: Cost
    per_peer: Cost = NOTHING
    mps: tuple[str, ...] = ()

    def with_peers(self, count: int) -> Cost:
        """Return the cost with `count` further modes."""
        more = self.per_peer
        return Cost(self.cost.fixed_seconds + count * more.fixed_seconds, self.cost.windows + count * more.windows)


# In order of priority.
CASES: Mapping[str, Case] = {
    "facts": Case(facts.facts, Cost(8)),
    "native_slices": Case(robustness.native_slices, Cost(4)),
    "calls": Case(costs.calls, Cost(30), Cost(10)),
    "splits": Case(shares.splits, Cost(4, 12), Cost(0, 3), mps=(modes.OURS_MPS,)),
    "caps": Case(shares.caps, Cost(2, 7), Cost(0, 7)),
    "torch_memory": Case(frameworks.torch_memory, Cost(30), Cost(20)),
    "audit": Case(memory.audit, Cost(16)),
    "decoders": Case(decoders.decoders, Cost(25, 12), Cost(15, 3), mps=(modes.MPS, modes.OURS_MPS)),
    "latency": Case(shares.latency, Cost(2, 4), Cost(0, 1), mps=(modes.OURS_MPS,)),
    "torch_costs": Case(trainings.torch_costs, Cost(25, 12), Cost(20, 6)),
    "torch_splits": Case(trainings.torch_splits, Cost(25, 7), Cost(12, 1)),
    "memory": Case(memory.exactness, Cost(25), Cost(20)),
    "reclaim": Case(costs.reclaim, Cost(8)),
    "kill_holding_lease": Case(robustness.kill_holding_lease, Cost(15), Cost(8)),
    "framework_memory": Case(frameworks.framework_memory, Cost(60)),
    "nvml_in_share": Case(frameworks.nvml_in_share, Cost(15), Cost(8)),
    "restart_and_resize": Case(robustness.restart_and_resize, Cost(20, 4)),
    "faulting_tenant": Case(robustness.faulting_tenant, Cost(8, 4), Cost(3, 1), mps=(modes.MPS, modes.OURS_MPS)),
    "transformers": Case(decoders.transformers, Cost(40, 4), Cost(25, 1), mps=(modes.MPS,)),
    "elasticity": Case(shares.elasticity, Cost(4, 8)),
    "starts": Case(costs.starts, Cost(30), Cost(15)),
    "handover": Case(shares.handover, Cost(4, 6)),
}
FIRST = tuple(CASES)
SECOND = FIRST[FIRST.index("framework_memory") :]
MINUTES = {"first": 9.3, "second": 3.8}
WARM_MS = 1500
MIN_WARM_MS = 200
OVERTIME_SECONDS = 60.0  # at least, for each case: a first import of a framework reads gigabytes
OVERDUE_SECONDS = 8.0  # after the deadline, to clean up
CLOSING_SECONDS = 20.0  # after the last case, for threads to end
BACKSTOP_SECONDS = 10.0  # for the results of a run that hangs
SPIN_LOOPS = 90_000  # a guess, used if the calibration fails
IMPORTED = ("torch", "transformers", "jax", "cupy", "triton", "numba.cuda")
READING = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(Exception):
        importlib.import_module(name)
"""


@dataclass
class Run:
    """A run: its machine, files and deadline."""

    which: machine.Machine
    scratch: Path
    results: Path
    report: Report
    deadline: float
    peers: Sequence[modes.Mode]
    window_seconds: float | None
    loops: int = 0
    done: list[tuple[Cost, float, float]] = field(default_factory=list)

    @property
    def seconds_left(self) -> float:
        """Time until the deadline."""
        return self.deadline - time.monotonic()


def main() -> None:
    begun = time.monotonic()
    arguments = _arguments()
    part = "first" if arguments.first else "second" if arguments.second else ""
    minutes = arguments.minutes or MINUTES.get(part, 20.0)
    with tempfile.TemporaryDirectory(prefix="gpushare-", ignore_cleanup_errors=True) as scratch:
        try:
            which = machine.simulated(Path(scratch)) if arguments.simulated else machine.real()
        except machine.NoGpuError as error:
            sys.exit(f"{error}; --simulated makes a dry run")
        report = Report(which.describe(), datetime.datetime.now(datetime.UTC).date(), part)
        run = Run(
            which,
            Path(scratch),
            arguments.results,
            report,
            begun + minutes * 60,
            arguments.peer,
            arguments.window,
        )
        _end_after(run, run.seconds_left + OVERDUE_SECONDS)
        try:
            _read_frameworks(which)
            tenants.build()
            asyncio.run(_measure(run, arguments.only))
        except Exception as error:
            report.fail("run", error)
        page = report.write(run.results)
    print(narrow(report.page()))
    print(f"{page}: {time.monotonic() - begun:.0f} s, {len(report.failed)} failed", flush=True)
    sys.exit(1 if report.failed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--first", action="store_true", help="all cases that fit into 9.5 minutes, in order of priority")
    which.add_argument(
        "--second", action="store_true", help="cases that the first run usually leaves out, in under 4 minutes"
    )
    which.add_argument("--only", type=_cases, metavar="CASE,...", help=f"any of {', '.join(CASES)} (default: all)")
    parser.add_argument("--minutes", type=float, help="time limit")
    parser.add_argument(
        "--window", type=float, metavar="SECONDS", help="length of a measurement (3 to 6, as time allows)"
    )
    parser.add_argument("--peer", action="append", default=[], type=modes.parse_peer, metavar="NAME=PATH[,...]")
    parser.add_argument("--simulated", action="store_true", help="a dry run on a simulated GPU")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go (%(default)s)")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("run it as root: each program gets its own mount namespace, as in a container")
    if not arguments.only:
        arguments.only = SECOND if arguments.second else FIRST
    return arguments


def _cases(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(CASES):
        raise argparse.ArgumentTypeError(f"unknown case {', '.join(sorted(unknown))}: must be of {', '.join(CASES)}")
    return names


_ENDING = threading.Lock()


def _end_after(run: Run, seconds: float) -> None:
    """Write and print the results and exit after so long, even if a thread hangs in the driver."""

    def end() -> None:
        if not _ENDING.acquire(blocking=False):
            return  # another of these timers already ends it
        _after(BACKSTOP_SECONDS, lambda: os._exit(3))
        try:
            tenants.kill_all()
            modes.kill_daemons()
            run.report.fail("run", "the run hung and was ended")
            page = run.report.write(run.results)
            print(narrow(run.report.page()))
            print(f"{page}: ended, {len(run.report.failed)} failed", flush=True)
        finally:
            os._exit(3)

    _after(seconds, end)


def _after(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def _read_frameworks(which: machine.Machine) -> None:
    """Import all frameworks once in the background, so that no case waits for the disk."""
    null = subprocess.DEVNULL
    command = [sys.executable, "-c", READING, *IMPORTED]
    subprocess.Popen(command, env=which.environment, stdin=null, stdout=null, stderr=null)


def calibrate(run: Run) -> int:
    """Return the loops of a nanosecond, or a guess: many cases do without."""
    try:
        return tenants.calibrate(run.which)
    except Exception as error:
        run.report.fail("calibrate", error)
        return SPIN_LOOPS


async def _measure(run: Run, names: Sequence[str]) -> None:
    report = run.report
    run.loops = calibrate(run)
    mps_there = shutil.which("nvidia-cuda-mps-control", path=run.which.environment.get("PATH")) is not None
    found = {"MPS": mps_there, "mount namespaces": tenants.has_namespaces()}
    report.say(f"- load: {os.getloadavg()[0]:.1f}; peers: {', '.join(peer.name for peer in run.peers) or 'none'}")
    report.say("- " + "; ".join(f"{what}: {'yes' if there else 'no'}" for what, there in found.items()))
    peers = {name: len(run.peers) + len(CASES[name].mps) * mps_there for name in names}
    case_costs = {name: CASES[name].with_peers(peers[name]) for name in names}
    left = list(names)
    left_out: Sequence[str] = ()
    while True:
        planned = plan.make(
            left, case_costs, run.seconds_left, pace=plan.pace(run.done), fixed_window_seconds=run.window_seconds
        )
        left_out = planned.left_out
        if not planned.fits:
            break
        name = planned.fits[0]
        left.remove(name)
        await _case(run, name, case_costs[name], planned.window_seconds)
        report.write(run.results)
    if left_out:
        report.say(f"\nLeft out, because time ran out: {', '.join(left_out)}")
        report.say(f"To measure them: python3 -m bench.gpu --only {','.join(left_out)}")
    _end_after(run, CLOSING_SECONDS)


async def _case(run: Run, name: str, cost: Cost, window_seconds: float) -> None:
    """Run one case. A case that fails or takes too long is reported, and the next one begins."""
    begun = time.monotonic()
    expected = cost.seconds(window_seconds, plan.pace(run.done))
    limit = min(expected + max(expected, OVERTIME_SECONDS), max(1.0, run.seconds_left))
    directory = run.scratch / name
    directory.mkdir()
    case = CASES[name]
    warm_ms = WARM_MS if run.window_seconds is None else min(WARM_MS, max(MIN_WARM_MS, int(run.window_seconds * 1000)))
    try:
        async with asyncio.timeout(limit), contextlib.AsyncExitStack() as stack:
            mps = stack.enter_context(modes.mps(run.which.environment, directory / "mps")) if case.mps else {}
            if case.mps and not mps:
                run.report.say(f"\n{name}: no MPS: its daemon is missing or does not answer")
            # Each case has its own node, so that shares of the previous one leave no debts or credits.
            gpu = await stack.enter_async_context(tenants.opened(run.which, directory, run.loops))
            peers = [*run.peers, *(mps[name] for name in case.mps if mps)]
            if pipe := next((peer.mps_pipe for peer in peers if peer.mps_pipe), None):
                stack.enter_context(tenants.reachable(pipe, contract.CONTAINER_MPS_PIPE))
            rounds = 1 if run.window_seconds else 3
            await case.run(Bench(gpu, run.report, window_seconds, warm_ms, rounds, peers))
    except TimeoutError:
        run.report.fail(name, f"not done after {limit:.0f} s, {expected:.0f} s were planned")
    except Exception as error:
        run.report.fail(name, error)
    took = time.monotonic() - begun
    run.done.append((cost, window_seconds, took))
    print(f"{name}: {took:.0f} s of {expected:.0f} planned, windows of {window_seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
