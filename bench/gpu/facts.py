"""The fact that every limit depends on: whether the driver hands out the functions that the library intercepts."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys

from bench.gpu.bench import Bench


async def facts(bench: Bench) -> None:
    """Report the driver's entry points, and attach the output of nvidia-smi -q."""
    which = bench.gpu.machine
    asked = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "bench.gpu.driver_facts"],
        env=which.with_project(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    bench.report.say("\n### The driver's functions\n")
    bench.report.say((asked.stdout + asked.stderr[-1500:]).strip())
    bench.report.add("facts.intercepted", float(asked.returncode == 0), "", against="all", goal=1.0)
    if asked.returncode != 0:
        bench.report.fail("facts", "the driver hands out functions that the library does not intercept")
    if smi := shutil.which("nvidia-smi"):
        listed = await asyncio.to_thread(
            subprocess.run, [smi, "-q"], capture_output=True, text=True, timeout=30, check=False
        )
        bench.report.attached[".smi.txt"] = listed.stdout
