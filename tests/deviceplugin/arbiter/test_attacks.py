"""Two behaving shares keep their parts of the GPU while another container attacks the arbiter."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare.allocation import GivenShare
from tests.deviceplugin import arbiter_node, simulated
from tests.deviceplugin.arbiter import attacker
from tests.deviceplugin.arbiter.test_real_leases import Programs, begin, load, percent, programs, split
from tests.deviceplugin.arbiter_node import ArbiterNode

pytestmark = pytest.mark.slow

__all__ = ["load", "programs"]  # fixtures

WAYS = [name for name, what in vars(attacker.Attacker).items() if what.__doc__ and not name.startswith("_")]


@contextlib.asynccontextmanager
async def under_attack(node: ArbiterNode, way: str, count: int = 2) -> AsyncIterator[None]:
    """Run attacking processes of another pod on the same GPU."""
    processes = []
    try:
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.deviceplugin.arbiter.attacker",
                str(node.socket),
                way,
                cwd=arbiter_node.ROOT,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "TEST_POD": "hostile", "TEST_CONTAINER": "main"},
            )
            processes.append(process)
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"at it\n"
        yield
        assert all(process.returncode is None for process in processes), "they gave up"
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.parametrize("way", WAYS)
async def test_two_behaving_shares_keep_their_parts_next_to_an_attacker(
    programs: Programs, node: ArbiterNode, gpus: Path, way: str
) -> None:
    node.add_pod("hostile", GivenShare(("main",), (simulated.uuids(gpus)[0],), 0, 100, 1 << 20))

    async def window() -> tuple[float, float]:
        async with (
            programs.ready(30, 100) as first,
            programs.ready(70, 100) as two,
            under_attack(node, way),
        ):
            begin(first, after=1.5, seconds=2.0)
            begin(two, after=1.5, seconds=2.0)
            return await asyncio.gather(percent(first), percent(two))

    # Loose bounds, for a busy machine. A share without a request that keeps the GPU gets its 100 ms now and then.
    await split(window, (22, 38), 60)


async def test_an_arbiter_out_of_descriptors_still_serves_its_clients(
    programs: Programs, node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(listener: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    async def window() -> tuple[float, float]:
        async with programs.ready(30, 100) as first, programs.ready(70, 100) as two:
            with monkeypatch.context() as patched:
                patched.setattr(socket.socket, "accept", none_left)
                newcomer = await node.share(programs.pods[-2])
                hello = asyncio.create_task(newcomer("hello"))
                begin(first, after=0.7, seconds=1.0)
                begin(two, after=0.7, seconds=1.0)
                shares = await asyncio.gather(percent(first), percent(two))
                assert not hello.done()
            assert "slot" in await hello
        return shares

    await split(window, (22, 38), 60)
