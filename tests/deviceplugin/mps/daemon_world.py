"""The daemons of a node, with a small program that takes commands over its pipe as NVIDIA's does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deviceplugin.mps import daemon, steps
from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.supervisor import Control
from tests.deviceplugin import simulated

PROGRAM = simulated.BUILD / "nvidia-cuda-mps-control"
GIB = 1 << 30
POD = "11111111-2222-3333-4444-555555555555"
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
SPEC = steps.Spec(UUID, (steps.MpsGpu(UUID, 2, 40 * GIB, 4),))
OTHER = steps.Spec("GPU-other", (steps.MpsGpu("GPU-other", 3, 24 * GIB, 2),))


class World:
    """The daemons of a node, and the compute modes that they set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modes: dict[str, bool] = {}
        self.changed = asyncio.Event()
        self.warned: list[str] = []
        self.daemons = self.made()

    def made(self, program: Path = PROGRAM) -> Daemons:
        return Daemons(
            root=self.root,
            program=program,
            set_exclusive=self.exclusive,
            changed=self.changed.set,
            warn=self.warned.append,
        )

    async def exclusive(self, uuid: str, exclusive: bool) -> None:
        self.modes[uuid] = exclusive

    async def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def pid(self, name: str = UUID) -> int:
        return int(self.daemons.files(name).pid_file.read_text())

    async def limits(self, name: str = UUID) -> list[str]:
        return (self.daemons.files(name).pipe / "limits").read_text().splitlines()

    async def answers(self, name: str = UUID) -> bool:
        return await Control(PROGRAM, steps.environment(SPEC, self.daemons.files(name))).answers()


@pytest.fixture
async def world(simulation: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(daemon, "FIRST_PAUSE_SECONDS", 0.05)
    made = World(tmp_path / "mps")
    yield made
    await made.daemons.detach()
    for directory in made.root.glob("*/"):
        await made.daemons.stop(directory.name)
    assert not list(made.root.glob("*/pipe/nvidia-cuda-mps-control.pid")), "no daemon is left over"


def is_alive(pid: int) -> bool:
    """Whether the process runs; an ended one may stay a zombie here."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def restarted(world: World, spec: steps.Spec) -> None:
    """Kill the daemon, and wait for the next one."""
    os.kill(world.pid(), signal.SIGKILL)
    await world.until(lambda: world.daemons.problem(spec.name) != "")
    await world.until(lambda: world.daemons.problem(spec.name) == "")
