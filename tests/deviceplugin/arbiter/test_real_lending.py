"""The real library and arbiter on a simulated GPU: programs use free memory beyond their share's own, up to its limit."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.arbiter import lending, share_resizing
from gpushare import ledger
from gpushare.allocation import GivenShare
from tests.deviceplugin import simulated, waiting
from tests.deviceplugin.arbiter.programs import resized
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.interposer import container
from tests.interposer.gpu import Gpu
from tests.programs import command

MIB = 1 << 20
GPU_BYTES = 400 * MIB
OWN, LIMIT = 64 * MIB, 256 * MIB


@pytest.fixture
def uuid(gpus: Path) -> str:
    return simulated.uuids(gpus)[0]


@pytest.fixture
def box(node: ArbiterNode, gpus: Path, uuid: str, monkeypatch: pytest.MonkeyPatch) -> container.Container:
    subprocess.run(["make", "-s", "-C", simulated.ROOT / "interposer", "all"], check=True, timeout=120)
    monkeypatch.setattr(lending, "CHUNK_BYTES", MIB)
    monkeypatch.setattr(share_resizing, "RETRY_SECONDS", 0.01)
    node.gpu_bytes = GPU_BYTES
    node.add_pod("trainer", GivenShare(("main",), (uuid,), 50, 100, OWN, memory_limit_bytes=LIMIT))
    return container.Container(node.socket.parent, gpus)


@contextlib.asynccontextmanager
async def running(box: container.Container, program: list[str], pod: str) -> AsyncIterator[subprocess.Popen[str]]:
    with container.finishing(box.start(program, {"TEST_POD": pod, "TEST_CONTAINER": "main"})) as process:
        yield process


async def output(box: container.Container, *sizes: int, pod: str = "trainer") -> str:
    program = [container.PROBE, "--allocate", ",".join(map(str, sizes))]
    async with running(box, program, pod) as process:
        out, errors = await asyncio.to_thread(process.communicate, timeout=30)
        return out + errors


def place(node: ArbiterNode, name: str, uuid: str, memory_bytes: int) -> None:
    node.add_pod(name, GivenShare(("main",), (uuid,), 10, 100, memory_bytes))
    assert ledger.use(node.gpunode())[uuid].memory_bytes <= GPU_BYTES
    node.resizing.refresh()


def remove(node: ArbiterNode, name: str) -> None:
    node.allocations = [entry for entry in node.allocations if entry.id != f"of-{name}"]
    node.pods = [pod for pod in node.pods if pod["metadata"]["name"] != name]
    node.resizing.refresh()


async def test_a_program_bursts_up_to_its_memory_limit(box: container.Container, node: ArbiterNode) -> None:
    shown = await output(box, OWN, LIMIT - OWN, 1)
    assert shown.count("allocated") == 2, shown
    assert "refused 1: CUDA_ERROR_OUT_OF_MEMORY" in shown
    assert "256 of the container's 256 MiB are in use (gpushare.io/memory-limit)" in shown
    await waiting.until(lambda: node.resizes == ())


async def test_a_program_is_refused_once_the_free_part_is_gone(
    box: container.Container, node: ArbiterNode, uuid: str
) -> None:
    place(node, "other", uuid, 300 * MIB)
    shown = await output(box, OWN, 36 * MIB, 1)
    assert shown.count("allocated") == 2, shown
    assert "refused 1: CUDA_ERROR_OUT_OF_MEMORY" in shown
    assert "the GPU has too little free to lend it more (gpushare.io/memory-limit)" in shown


@pytest.mark.slow
async def test_every_request_is_honoured_while_others_burst(
    box: container.Container, node: ArbiterNode, uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "KEPT_SECONDS", 0.05)
    node.add_pod("second", GivenShare(("main",), (uuid,), 20, 100, OWN, memory_limit_bytes=LIMIT))
    dice, lent, owned = random.Random(3), 0, 0
    storm = command(resized.storm)
    async with running(box, storm, "trainer") as first, running(box, storm, "second") as second:
        with contextlib.closing(Gpu(box)) as gpu:
            for turn in range(12):
                lent += bool(node.gpunode().lent())
                free_bytes = GPU_BYTES - ledger.use(node.gpunode())[uuid].memory_bytes
                if free_bytes > 0:
                    asked, name = dice.randrange(1, free_bytes + 1), f"owner{turn}"
                    place(node, name, uuid, asked)
                    shown = await output(box, asked, pod=name)
                    assert f"allocated {asked}" in shown, shown
                    remove(node, name)
                    owned += 1
                assert await asyncio.to_thread(gpu.most_used) <= GPU_BYTES
        assert [process.poll() for process in (first, second)] == [None, None]
    assert min(lent, owned) > 2
