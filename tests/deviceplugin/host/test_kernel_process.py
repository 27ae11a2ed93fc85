"""The processes of arbiter and agent: leases are granted while the agent is stopped, and neither outlives the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.deviceplugin import arbiter_node, waiting
from tests.deviceplugin.arbiter_node import GPUS, ArbiterNode

pytestmark = pytest.mark.slow

TURNS = 150


class Agent:
    """The agent's end in another process, and the PID of the arbiter that it has started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        return await asyncio.wait_for(self.process.stdout.readline(), 30)

    async def listening(self) -> None:
        self.arbiter_pid = int(await self.line())
        self.arbiter = os.pidfd_open(self.arbiter_pid)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Agent]:
    command = (sys.executable, "-m", "tests.deviceplugin.arbiter.arbiter_process", str(directory), GPUS[0])
    process = await asyncio.create_subprocess_exec(
        *command, cwd=arbiter_node.ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    agent = Agent(process)
    try:
        yield agent
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


async def test_leases_are_granted_while_the_agent_is_stopped(short_path: Path) -> None:
    node = ArbiterNode(short_path)
    async with started(short_path) as agent, node.stack:
        await agent.listening()
        first, two, late = [await node.share(pod) for pod in ("pod1", "pod2", "pod2")]
        await first("hello")
        await two("hello")
        agent.signal(signal.SIGSTOP)
        assert await asyncio.gather(first("turns", TURNS), two("turns", TURNS)) == [TURNS, TURNS]
        # New processes wait until the agent sends their share.
        greeted = asyncio.create_task(late("hello"))
        assert await asyncio.gather(first("turns", TURNS), two("turns", TURNS)) == [TURNS, TURNS]
        assert not greeted.done()
        agent.signal(signal.SIGCONT)
        assert await greeted == {"gpus": 1, "slot": 1}


async def test_an_arbiter_ends_with_its_agent_and_the_next_one_waits_for_that(short_path: Path) -> None:
    node = ArbiterNode(short_path)
    async with node.stack, started(short_path) as first:
        await first.listening()
        process = await node.share("pod1")
        await process("hello")
        await process("charge", 0, 100)
        os.kill(first.arbiter_pid, signal.SIGSTOP)
        first.signal(signal.SIGKILL)
        async with started(short_path) as second:
            listening = asyncio.create_task(second.listening())
            # Long enough to take over the first one's ledgers, if nothing prevented that.
            await asyncio.sleep(1.0)
            assert not listening.done()
            assert not has_ended(first.arbiter)
            os.kill(first.arbiter_pid, signal.SIGCONT)
            await waiting.until(lambda: has_ended(first.arbiter))
            await listening
            second.process.stdin.write(b"\n")
            assert await second.line() == b'{"pod1": [100, 1]}\n'
