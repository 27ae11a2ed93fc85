"""Programs on simulated GPUs: with a whole GPU, or in a share with the shipped library and arbiter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.allocation import GivenShare
from tests.deviceplugin import arbiter_node, simulated
from tests.interposer import container

GIB = 1 << 30
SHARE_BYTES = 4 * GIB
DESCRIPTION = """
[node]
name = clients
driver-version = 550.54.15
cuda-version = 12.9
[gpu 0]
count = 2
model = NVIDIA A100-SXM4-40GB
memory = 40GiB
compute-capability = 8.0
nvlink = all
"""


def gpus(directory: Path) -> Path:
    """Two GPUs of 40 GiB."""
    simulated.build()
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)
    description = directory / "clients.ini"
    description.write_text(DESCRIPTION)
    simulated.command("create", description, directory / "gpus")
    return directory / "gpus"


def run_alone(
    where: Path, command: Sequence[str | Path], environment: Mapping[str, str] | None = None, *, seconds: float = 100
) -> str:
    """Run a program with the GPUs to itself; it must succeed. Return its output."""
    result = subprocess.run(
        [str(word) for word in command],
        env={**_plain(), "SIMGPU_DIR": str(where), "LD_LIBRARY_PATH": str(simulated.BUILD), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _plain() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root"), "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Shares:
    """Pods on a node with simulated GPUs, each with a share of the first."""

    node: arbiter_node.ArbiterNode
    gpus: Path
    pods: list[str] = field(default_factory=list)

    def add(self, *, memory_bytes: int = SHARE_BYTES, request: int = 30, limit: int = 100, count: int = 1) -> str:
        """Add a pod with a share of that many GPUs."""
        pod = f"client{len(self.pods)}"
        self.pods.append(pod)
        uuids = tuple(simulated.uuids(self.gpus)[:count])
        self.node.add_pod(pod, GivenShare(("main",), uuids, request, limit, memory_bytes))
        return pod

    def start(
        self, pod: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a program in the pod's container."""
        box = container.Container(self.node.socket.parent, self.gpus)
        variables = {**_plain(), "PYTHONPATH": "", "TEST_POD": pod, "TEST_CONTAINER": "main", **(environment or {})}
        return box.start(command, variables)

    async def finish(self, process: subprocess.Popen[str], *, seconds: float = 100) -> str:
        """Wait until the program succeeds and return its output. The library may report a full share, and nothing
        else.
        """
        with container.finishing(process):
            output, errors = await asyncio.to_thread(process.communicate, timeout=seconds)
        assert process.returncode == 0, output + errors
        assert container.complaints_of_the_library(errors) == []
        return output

    async def run(
        self,
        pod: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        *,
        seconds: float = 100,
    ) -> str:
        """Run a program in the pod's container; return its output."""
        return await self.finish(self.start(pod, command, environment), seconds=seconds)


@contextlib.asynccontextmanager
async def opened(directory: Path, where: Path) -> AsyncIterator[Shares]:
    """Run a node with an arbiter; `directory` needs a short path, for the socket in it."""
    async with arbiter_node.opened(directory) as node:
        yield Shares(node, where)
