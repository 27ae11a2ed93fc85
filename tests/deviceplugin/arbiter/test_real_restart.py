"""The arbiter is killed again and again during handovers, and its clients do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.deviceplugin import arbiter_node, simulated
from tests.deviceplugin.arbiter.programs import restarted
from tests.deviceplugin.arbiter.test_real_leases import begin, load, percent, split
from tests.interposer import container
from tests.programs import NO_CERTIFICATES, command

pytestmark = pytest.mark.slow

__all__ = ["load"]  # a fixture

KILLS = 3
MANY_KILLS = 8
STARTED = (1.0, 2.0, 4.0)  # two interpreters in sequence; longer on a busy machine
SETTLED = 2.0  # all clients reconnect within half a second


class Arbiter:
    """Arbiters in sequence, at the same socket."""

    def __init__(self, directory: Path, uuid: str) -> None:
        self._command = (sys.executable, "-m", "tests.deviceplugin.arbiter.arbiter_process", str(directory), uuid)

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=arbiter_node.ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **NO_CERTIFICATES},
        )
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), 20)

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def held(self) -> dict[str, list[int]]:
        """Return the held bytes and the number of processes by pod."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return dict(json.loads(await asyncio.wait_for(self._process.stdout.readline(), 20)))


@contextlib.asynccontextmanager
async def started(directory: Path, uuid: str) -> AsyncIterator[Arbiter]:
    made = Arbiter(directory, uuid)
    try:
        await made.start()
        yield made
    finally:
        await made.kill()


async def test_after_a_kill_during_a_handover_the_next_arbiter_knows_the_shares(
    short_path: Path, gpus: Path, load: Path
) -> None:
    dice = random.Random(6)

    async def window() -> tuple[float, float]:
        for seconds in STARTED:
            if parts := await parts_after_kills(seconds):
                return parts
        pytest.fail("this machine is too busy to say anything")

    async def parts_after_kills(started_seconds: float) -> tuple[float, float] | None:
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
                    begin(program, after=sum(moments) + started_seconds * KILLS + SETTLED + 3, seconds=2.0)
                loop = asyncio.get_running_loop()
                until = loop.time() + sum(moments) + started_seconds * KILLS + 3
                for moment in moments:
                    await asyncio.sleep(moment)
                    await arbiter.kill()
                    await arbiter.start()
                if loop.time() >= until:
                    return None
                first, second = await asyncio.gather(*(percent(program) for program in programs))
                return first, second

    await split(window, (22, 38), 70)


async def test_the_child_of_a_fork_after_a_restart_has_its_files_and_no_connection(
    short_path: Path, gpus: Path
) -> None:
    async with started(short_path, simulated.uuids(gpus)[0]) as arbiter:
        box = container.Container(short_path / "arbiter", gpus)
        environment = {"TEST_POD": "pod1", "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0"}
        program = box.start(command(restarted.forks), environment)
        with container.finishing(program):
            assert program.stdout is not None
            assert await asyncio.to_thread(program.stdout.readline) == "ready\n"
            await arbiter.kill()
            await arbiter.start()
            _, errors = await asyncio.to_thread(program.communicate, "\n", 20)
            assert program.returncode == 0, errors


def answer(program: subprocess.Popen[str]) -> str:
    """Return the program's next line."""
    assert program.stdout is not None
    assert select.select([program.stdout], [], [], 30)[0], "no answer"
    return program.stdout.readline().strip()


def say(program: subprocess.Popen[str]) -> None:
    """Stop the program, or let it continue."""
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


async def test_an_arbiter_killed_eight_times_knows_the_held_bytes_exactly(short_path: Path, gpus: Path) -> None:
    dice = random.Random(7)
    async with started(short_path, simulated.uuids(gpus)[0]) as arbiter:
        box = container.Container(short_path / "arbiter", gpus)
        with contextlib.ExitStack() as stack:

            def started_in(pod: str) -> subprocess.Popen[str]:
                environment = {"TEST_POD": pod, "TEST_CONTAINER": "main", "CUDA_VISIBLE_DEVICES": "0"}
                program = stack.enter_context(container.finishing(box.start(command(restarted.allocates), environment)))
                assert answer(program) == "ready"
                return program

            programs = {pod: [started_in(pod) for _ in range(2)] for pod in ("pod1", "pod2")}
            for round_number in range(MANY_KILLS):
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                await arbiter.kill()
                if round_number % 4 == 3:  # one dies while no arbiter runs, and another takes its place
                    dead = programs["pod1"].pop()
                    dead.kill()
                    dead.wait(10)
                await arbiter.start()
                if round_number % 4 == 3:
                    programs["pod1"].append(await asyncio.to_thread(started_in, "pod1"))
                for program in itertools.chain(*programs.values()):
                    say(program)
                held = {pod: sum(int(answer(process)) for process in running) for pod, running in programs.items()}
                report = await arbiter.held()
                assert report == {pod: [held[pod], 2] for pod in programs}, f"after {round_number + 1} kills"
                for program in itertools.chain(*programs.values()):
                    say(program)
            assert sum(held.values()) > 0
            assert [process.poll() for process in itertools.chain(*programs.values())] == [None] * 4
