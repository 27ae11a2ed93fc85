"""The real library and arbiter on simulated GPUs: the memory limit is exact to the byte, and freed memory returns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare.allocation import GivenShare
from tests.deviceplugin import simulated, waiting
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.interposer import container

MIB = 1 << 20
LIMIT = 64 * MIB


@pytest.fixture(scope="session")
def _library() -> None:
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)


@pytest.fixture
def box(_library: None, node: ArbiterNode, gpus: Path) -> container.Container:
    node.add_pod("trainer", GivenShare(("main",), tuple(simulated.uuids(gpus)[:1]), 50, 100, LIMIT))
    return container.Container(node.socket.parent, gpus)


@contextlib.asynccontextmanager
async def probe(box: container.Container, *arguments: str) -> AsyncIterator[subprocess.Popen[str]]:
    environment = {"TEST_POD": "trainer", "TEST_CONTAINER": "main"}
    with container.finishing(box.start([container.PROBE, *arguments], environment)) as process:
        yield process


async def output(box: container.Container, *arguments: str) -> str:
    async with probe(box, *arguments) as process:
        out, errors = await asyncio.to_thread(process.communicate, timeout=30)
        return out + errors


async def test_a_program_sees_its_share_and_is_refused_the_byte_above(box: container.Container) -> None:
    shown = await output(box, "--allocate", str(LIMIT))
    assert f"allocated {LIMIT}" in shown, shown
    shown = await output(box, "--allocate", str(LIMIT + 1))
    assert f"refused {LIMIT + 1}" in shown, shown


async def test_a_killed_programs_memory_is_free_for_the_next_one(box: container.Container, node: ArbiterNode) -> None:
    async with probe(box, "--allocate", str(LIMIT), "--hold", "60") as holder:
        await waiting.until(lambda: (node.used() or (0,))[0] == LIMIT)
        shown = await output(box, "--allocate", "1")
        assert "refused 1" in shown, shown
        os.kill(holder.pid, signal.SIGKILL)
        await asyncio.to_thread(holder.wait)  # a busy machine takes a moment to end it
        shown = await output(box, "--allocate", str(LIMIT))
        assert f"allocated {LIMIT}" in shown, shown
    await waiting.until(lambda: node.used() is None)


async def test_a_program_waits_for_the_memory_of_a_force_deleted_pod(
    box: container.Container, node: ArbiterNode
) -> None:
    node.gpu_bytes = LIMIT * 3 // 2
    async with probe(box, "--allocate", str(LIMIT), "--hold", "60") as holder:
        await waiting.until(lambda: (node.used() or (0,))[0] == LIMIT)
        (entry,), node.pods, node.allocations = node.allocations, [], []
        node.add_pod("next", *entry.shares)
        node.resizing.refresh()
        environment = {"TEST_POD": "next", "TEST_CONTAINER": "main"}
        with container.finishing(box.start([container.PROBE, "--allocate", str(LIMIT)], environment)) as following:
            await waiting.until(lambda: node.server.connections == 2)
            with pytest.raises(subprocess.TimeoutExpired):
                await asyncio.to_thread(following.wait, 1)
            os.kill(holder.pid, signal.SIGKILL)
            out, errors = await asyncio.to_thread(following.communicate, timeout=30)
            assert f"allocated {LIMIT}" in out, out + errors


async def test_a_program_continues_through_a_restart_of_the_agent(box: container.Container, node: ArbiterNode) -> None:
    async with probe(box, "--allocate", str(LIMIT // 2), "--hold", "60") as holder:
        await waiting.until(lambda: (node.used() or (0,))[0] == LIMIT // 2)
        await node.stop()
        await node.start()
        assert node.used() == (LIMIT // 2,)
        shown = await output(box, "--allocate", f"{LIMIT // 2},1")
        assert f"allocated {LIMIT // 2}" in shown, shown
        assert "refused 1" in shown, shown
        assert holder.poll() is None


async def test_a_process_of_another_pod_gets_a_reason_and_no_gpu(box: container.Container) -> None:
    environment = {"TEST_POD": "ghost", "TEST_CONTAINER": "main"}
    with container.finishing(box.start([container.PROBE, "--allocate", "1"], environment)) as process:
        out, errors = await asyncio.to_thread(process.communicate, timeout=30)
    assert "gpushare: the arbiter refused this process: this node has no pod with the UID" in errors
    assert "allocated" not in out
