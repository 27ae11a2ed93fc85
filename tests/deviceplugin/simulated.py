"""Simulated GPUs below the real pynvml.

NVML is one per process and remembers what it has seen, so each program here runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "simgpu"
SIMGPU = BUILD / "simgpu"
NODE = ROOT / "simgpu" / "samples" / "lab-node.ini"


def build() -> None:
    """Build what is missing."""
    subprocess.run(["make", "-s", "-C", ROOT / "simgpu"], check=True, timeout=120)


def create(directory: Path) -> Path:
    """Make the four GPUs of the lab's node; return where they are."""
    subprocess.run([SIMGPU, "create", NODE, directory], check=True, timeout=30)
    return directory


def uuids(directory: Path) -> list[str]:
    """Their UUIDs, by index."""
    return [path.name.partition("-")[2] for path in sorted(directory.glob("gpu*"))]


def command(*words: str | Path) -> None:
    """Run `simgpu`, from a test."""
    subprocess.run([SIMGPU, *words], check=True, timeout=30)


async def change(*words: str | Path) -> None:
    """Run `simgpu`, from a test with an event loop."""
    process = await asyncio.create_subprocess_exec(SIMGPU, *map(str, words))
    assert await process.wait() == 0


def environment(directory: Path) -> dict[str, str]:
    """What makes NVML find them."""
    return {**os.environ, "SIMGPU_DIR": str(directory), "LD_LIBRARY_PATH": str(BUILD), "PYTHONPATH": str(ROOT)}


def run(directory: Path, program: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a Python program with arguments on a node with these GPUs; `simgpu` in it runs the command."""
    prelude = f"""
    import subprocess
    from deviceplugin.hardware import nvml, nvml_call
    def simgpu(verb, *words):
        subprocess.run([{str(SIMGPU)!r}, verb, {str(directory)!r}, *words], check=True)
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(program), *map(str, words)],
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
