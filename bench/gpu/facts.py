"""The fact that every limit depends on: whether the driver hands out the functions that the library intercepts."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys

from bench.gpu.bench import Bench
from bench.gpu.machine import Machine

SECONDS = 30.0


async def facts(bench: Bench) -> None:
    """Report the driver's entry points, and attach the output of nvidia-smi -q."""
    which = bench.gpu.machine
    if smi := shutil.which("nvidia-smi", path=which.environment.get("PATH")):
        with bench.row("facts.nvidia-smi"):
            bench.report.attached[".smi.txt"] = (await _run([smi, "-q"], which)).stdout
    asked = await _run([sys.executable, "-m", "bench.gpu.driver_facts"], which)
    bench.report.say("\n### The driver's functions\n")
    bench.report.say((asked.stdout + asked.stderr[-1500:]).strip())
    bench.report.add("facts.intercepted", float(asked.returncode == 0), "", against="all", goal=1.0)
    if asked.returncode != 0:
        others = "the driver hands out functions that the library does not intercept"
        answered = "NOT INTERCEPTED" in asked.stdout
        bench.report.fail("facts", others if answered else f"the driver could not be asked: {asked.stderr[-300:]}")


async def _run(command: list[str], which: Machine) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        command,
        env=which.with_project(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
