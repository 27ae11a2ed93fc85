"""The arbiter is killed again and again in the middle of handovers, and its clients go on as if it had not been."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.deviceplugin import arbiter_node, simulated
from tests.deviceplugin.arbiter.test_real_leases import begin, load, percent
from tests.interposer import container

pytestmark = pytest.mark.slow

__all__ = ["load"]  # a fixture

KILLS = 5
SETTLED = 2.0  # within half a second all have found the next one


class Arbiter:
    """One after another, at the same place."""

    def __init__(self, directory: Path, uuid: str) -> None:
        self._command = (sys.executable, "-m", "tests.deviceplugin.arbiter.arbiter_process", str(directory), uuid)

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=arbiter_node.ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), 20) == b"ready\n"

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@contextlib.asynccontextmanager
async def started(directory: Path, uuid: str) -> AsyncIterator[Arbiter]:
    made = Arbiter(directory, uuid)
    await made.start()
    try:
        yield made
    finally:
        await made.kill()


async def test_an_arbiter_that_is_killed_in_a_handover_is_followed_by_one_that_knows(
    short_path: Path, gpus: Path, load: Path
) -> None:
    dice = random.Random(6)
    async with started(short_path, simulated.uuids(gpus)[0]) as arbiter:
        box = container.Container(short_path / "arbiter", gpus)
        with contextlib.ExitStack() as stack:
            programs = []
            for pod in ("pod1", "pod2"):
                environment = {"TEST_POD": pod, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0"}
                program = stack.enter_context(container.finishing(box.start([load, "async", "1000"], environment)))
                programs.append(program)
                assert program.stdout is not None
                assert await asyncio.to_thread(program.stdout.readline) == "ready\n"
            moments = [dice.uniform(0.3, 0.9) for _ in range(KILLS)]
            for program in programs:
                begin(program, after=sum(moments) + 0.5 * KILLS + SETTLED + 3, seconds=2.0)
            loop = asyncio.get_running_loop()
            until = loop.time() + sum(moments) + 0.5 * KILLS + 3
            for moment in moments:
                await asyncio.sleep(moment)
                await arbiter.kill()
                await arbiter.start()
            assert loop.time() < until, "this machine is too busy to say anything"
            first, second = await asyncio.gather(*(percent(program) for program in programs))
    assert 22 < 100 * first / (first + second) < 38
    assert first + second > 70
