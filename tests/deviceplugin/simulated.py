"""Simulated GPUs below the real pynvml.

NVML is one per process and remembers what it has seen, so each program here runs in its own process.
"""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import programs
from tests.programs import Parameters

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "simgpu"
SIMGPU = BUILD / "simgpu"
NODE = ROOT / "simgpu" / "samples" / "lab-node.ini"


def build() -> None:
    """Build what is missing."""
    subprocess.run(["make", "-s", "-C", ROOT / "simgpu"], check=True, timeout=120)


def create(directory: Path) -> Path:
    """Create the four GPUs of the lab's node; return their directory."""
    subprocess.run([SIMGPU, "create", NODE, directory], check=True, timeout=30)
    return directory


def uuids(directory: Path) -> list[str]:
    """Return the UUIDs, by index."""
    return [path.name.partition("-")[2] for path in sorted(directory.glob("gpu*"))]


def command(*words: str | Path) -> None:
    """Run `simgpu`, from a test."""
    subprocess.run([SIMGPU, *words], check=True, timeout=30)


async def change(*words: str | Path) -> None:
    """Run `simgpu`, from a test with an event loop."""
    process = await asyncio.create_subprocess_exec(SIMGPU, *map(str, words))
    assert await process.wait() == 0


def environment(directory: Path) -> dict[str, str]:
    """Return the environment in which NVML finds the GPUs."""
    simulation = {"SIMGPU_DIR": str(directory), "LD_LIBRARY_PATH": str(BUILD), "PYTHONPATH": str(ROOT)}
    return {**os.environ, **programs.NO_CERTIFICATES, **simulation}


def run(
    directory: Path, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
) -> subprocess.CompletedProcess[str]:
    """Run a program of the tests on a node with these GPUs."""
    return subprocess.run(
        programs.command(function, *values, **named),
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def printed(
    directory: Path, function: Callable[Parameters, None], *values: Parameters.args, **named: Parameters.kwargs
) -> list[Any]:
    """Run a program and return the values that it prints, one per line. Fails if the program does."""
    result = run(directory, function, *values, **named)
    assert result.returncode == 0, result.stderr
    return [ast.literal_eval(line) for line in result.stdout.splitlines()]
