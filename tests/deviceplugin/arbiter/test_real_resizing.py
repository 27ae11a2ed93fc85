"""The real library and arbiter on a simulated GPU: programs at full speed while their share is resized."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deviceplugin.arbiter import share_resizing
from gpushare.allocation import GivenShare
from tests.deviceplugin import simulated, waiting
from tests.deviceplugin.arbiter.programs import resized
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.interposer import container
from tests.interposer.gpu import Gpu
from tests.programs import command

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture(scope="session")
def _library() -> None:
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)


@pytest.fixture
def box(_library: None, node: ArbiterNode, gpus: Path) -> container.Container:
    node.add_pod("trainer", GivenShare(("main",), (simulated.uuids(gpus)[0],), 50, 100, 300 * MIB))
    return container.Container(node.socket.parent, gpus)


async def said(process: subprocess.Popen[str], line: str) -> list[int]:
    """Return the program's answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    async with asyncio.timeout(20):
        return [int(word) for word in (await asyncio.to_thread(process.stdout.readline)).split()]


@contextlib.asynccontextmanager
async def program(box: container.Container, function: Callable[[], None]) -> AsyncIterator[subprocess.Popen[str]]:
    environment = {"TEST_POD": "trainer", "TEST_CONTAINER": "main"}
    process = box.start(command(function), environment)
    with container.finishing(process):
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "started\n"
        yield process


def step(node: ArbiterNode, dice: random.Random) -> str:
    """Let the placer or the user make a change."""
    share = node.allocations[0].shares[0]
    sizes = {resize.memory_bytes for resize in node.resizes}
    if share.shrink_to_bytes is None and dice.random() < 0.5:
        node.change(memory_bytes=min(300 * MIB, share.memory_bytes + dice.randrange(100 * MIB)))
        return "grew"
    if share.shrink_to_bytes is None:
        node.change(shrink_to_bytes=dice.randrange(20 * MIB, share.memory_bytes))
        return "asked"
    if sizes == {share.shrink_to_bytes}:
        node.change(memory_bytes=share.shrink_to_bytes, shrink_to_bytes=None)
        return "gave up"
    if dice.random() < 0.05:
        node.change(shrink_to_bytes=None)
        return "took back"
    return "waited"


async def test_no_byte_above_the_limit_is_used_at_full_speed_and_through_restarts(
    box: container.Container, node: ArbiterNode, gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_resizing, "RETRY_SECONDS", 0.01)
    dice, done, most = random.Random(3), [], 0
    async with (
        program(box, resized.storm) as first,
        program(box, resized.storm) as two,
        program(box, resized.storm) as three,
    ):
        with contextlib.closing(Gpu(box)) as gpu:
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline or not {"grew", "asked", "gave up", "restarted"} <= set(done):
                (group,) = node.groups.all()
                counted, before = node.allocations[0].shares[0].memory_bytes, group.tenant.memory_bytes
                used = await asyncio.to_thread(gpu.most_used)
                # The limit may have become lower meanwhile, but not higher.
                assert used <= min(counted, max(before, group.tenant.memory_bytes))
                most = max(most, used)
                done.append(step(node, dice))
                if len(done) % 40 == 0:
                    await node.stop()
                    await node.start()
                    done.append("restarted")
            assert [process.poll() for process in (first, two, three)] == [None] * 3
    assert most > 100 * MIB


async def test_an_idle_program_with_memory_finds_the_next_agent_and_is_resized(
    box: container.Container, node: ArbiterNode
) -> None:
    async with program(box, resized.quiet) as quiet:
        assert await said(quiet, str(100 * MIB)) == [0, 300 * MIB]
        await node.stop()
        await node.start()
        node.change(memory_bytes=400 * MIB)
        await waiting.until(lambda: not node.groups.all()[0].outdated)
        assert await said(quiet, str(290 * MIB)) == [0, 400 * MIB]
        node.change(shrink_to_bytes=200 * MIB)
        assert [resize.memory_bytes for resize in node.resizes] == [400 * MIB]
        assert await said(quiet, "free") == [0]
        await waiting.until(lambda: [resize.memory_bytes for resize in node.resizes] == [200 * MIB])
        assert await said(quiet, str(101 * MIB)) == [2, 200 * MIB]
