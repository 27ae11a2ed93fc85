"""A run on a GPU, one case of which never ends."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from bench.gpu import __main__ as bench
from bench.gpu import tenants
from bench.gpu.bench import Bench
from bench.gpu.modes import NATIVE
from bench.gpu.plan import Cost


def hangs(results: str, pid: str, *, in_thread: bool) -> None:
    """Hang in the event loop, as in a call of the driver's, or in a thread; `pid`: where to write a program's."""

    async def hang(given: Bench) -> None:
        given.report.table("Measured", ["", "ms"], [["one", "1.0"]])
        given.gpu.start(NATIVE, ["sh", "-c", f"echo $$ > {pid}; exec sleep 1000"])
        _wait_for(Path(pid))
        if in_thread:
            await asyncio.to_thread(_sleep)
        _sleep()

    bench.CASES = {"hang": bench.Case(hang, Cost(1))}
    bench.OVERDUE_SECONDS = bench.CLOSING_SECONDS = 1.0
    tenants.build = lambda: None
    sys.argv[1:] = ["--only", "hang", "--minutes", "0.1", "--simulated", "--results", results]
    bench.main()


def _wait_for(file: Path) -> None:
    while not file.exists() or not file.read_text():
        time.sleep(0.01)


def _sleep() -> None:
    time.sleep(1000)
