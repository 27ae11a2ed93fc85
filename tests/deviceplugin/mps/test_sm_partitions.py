"""Shares with the isolation mps in static SM partitions, on simulated GPUs with a driver that has them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.mps import shares, sm_partitions, steps
from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.shares import ClientFiles, MpsShares
from deviceplugin.mps.sm_partitions import SmPartition
from deviceplugin.mps.supervisor import Control, ControlError
from gpushare.allocation import Allocation, GivenShare, Isolation, PodRef, Steps, slot
from gpushare.gpunode import Gpu, GpuNode
from gpushare.refusal import Refusal
from tests.deviceplugin import arbiter_node, simulated
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.deviceplugin.mps.programs import clients
from tests.interposer import container
from tests.programs import command
from tests.simgpu import mps_node
from tests.simgpu.mps_node import Client
from tests.simgpu.programs import mps as programs

MULTIPROCESSORS = "attribute 16"
QUARTER = 24  # multiprocessors: six chunks of four, of the 27 chunks of an A100
LIMIT = 64 << 20
PARTITION = "CUDA_MPS_SM_PARTITION"


class World:
    """A node whose first GPU is cut into four partitions, and the pods `a` to `d` with a quarter of it each."""

    def __init__(self, node: ArbiterNode, gpus: Path, place: Path) -> None:
        self.node, self.gpus, self.seconds = node, gpus, 0.0
        self.uuid = simulated.uuids(gpus)[0]
        self.partitions = 4
        # A real daemon finds its GPUs without a variable.
        self.program = place / "control"
        self.program.write_text(f'#!/bin/sh\nSIMGPU_DIR={gpus} exec {simulated.BUILD}/nvidia-cuda-mps-control "$@"\n')
        self.program.chmod(0o755)
        self.root = place / "mps"
        self.next_agent()
        for pod in "abcd":
            self.node.add_pod(pod, GivenShare(("main",), (self.uuid,), 25, 25, LIMIT), isolation=Isolation.MPS)

    def next_agent(self) -> None:
        self.daemons = Daemons(root=self.root, program=self.program, set_exclusive=self.exclusive)
        self.shares = MpsShares(
            self.daemons,
            node=self.gpunode,
            fractional=lambda: frozenset({self.uuid}),
            clock=lambda: self.seconds,
        )

    async def exclusive(self, uuid: str, exclusive: bool) -> None:
        raise AssertionError(uuid, exclusive)

    def gpunode(self) -> GpuNode:
        gpu = Gpu(self.uuid, 0, "A100", 80 << 30, sm_partitions=self.partitions)
        return dataclasses.replace(self.node.gpunode(), gpus=(gpu,))

    async def ready(self, pod: str) -> ClientFiles | Refusal:
        return await self.shares.ready(self.uuid, sm_partitions.key(f"of-{pod}/0"))

    async def starts(self, pod: str) -> container.Container:
        """Return the pod's container, which starts now."""
        files = await self.ready(pod)
        assert isinstance(files, ClientFiles), files
        assert files.partition is not None
        directory = self.node.socket.parent
        return container.Container(
            directory,
            self.gpus,
            environment={"TEST_POD": pod, "TEST_CONTAINER": "main", PARTITION: "GPU-1/of-another"},
            mps_pipe=files.daemon.pipe,
            mps_partition=files.partition,
        )


@pytest.fixture
async def world(simulation: None, tmp_path: Path, short_path: Path) -> AsyncIterator[World]:
    with mps_node.described(tmp_path / "node", **mps_node.NEW_DRIVER) as described:
        async with arbiter_node.opened(short_path) as node:
            made = World(node, described.directory, tmp_path)
            await made.shares.step()
            yield made
            node.allocations.clear()
            made.seconds += shares.STARTING_SECONDS
            await made.shares.step()
            assert not list(made.root.glob("*/pipe/nvidia-cuda-mps-control.pid")), "no daemon is left over"


async def until_clients(world: World, count: int) -> None:
    async with asyncio.timeout(30):
        while sum(map(len, (await world.shares.clients(world.uuid) or {}).values())) != count:
            pass


async def test_each_share_has_a_partition_whatever_its_environment_says(world: World) -> None:
    boxes = [await world.starts(pod) for pod in "abcd"]
    names = {(box.mps_partition / "name").read_text() for box in boxes if box.mps_partition}
    assert len(names) == 4
    with container.finishing(boxes[0].start(command(programs.obeys, 0))) as process:
        client = await asyncio.to_thread(Client, process)
        assert client.first == "0 0"
        assert await asyncio.to_thread(client.does, MULTIPROCESSORS) == QUARTER
        refusal = await world.ready("e")
        assert isinstance(refusal, Refusal)
        assert refusal.reason.endswith("all 4 SM partitions are in use: a program of an ended pod may still run")
        await world.daemons.detach()
        world.next_agent()
        await world.shares.step()
        assert {(box.mps_partition / "name").read_text() for box in boxes if box.mps_partition} == names
        assert await world.starts("a") == boxes[0], "another container of the same share"


async def test_a_new_number_of_partitions_waits_for_the_last_share(world: World, tmp_path: Path) -> None:
    after_reboot = Daemons(root=tmp_path / "empty", program=world.program, set_exclusive=world.exclusive)
    without_daemon = MpsShares(after_reboot, node=world.gpunode, fractional=frozenset)
    assert (world.shares.partitions(world.uuid, 2), without_daemon.partitions(world.uuid, 2)) == (4, 4)
    world.node.allocations.clear()
    assert (world.shares.partitions(world.uuid, 2), without_daemon.partitions(world.uuid, 2)) == (4, 2)


async def test_a_partition_is_free_once_its_share_and_its_clients_are_gone(world: World) -> None:
    first, *_ = [await world.starts(pod) for pod in "abcd"]
    with container.finishing(first.start(command(programs.obeys, 0))) as process:
        assert (await asyncio.to_thread(Client, process)).first == "0 0"
        del world.node.allocations[0]
        world.node.add_pod("e", GivenShare(("main",), (world.uuid,), 25, 25, LIMIT), isolation=Isolation.MPS)
        assert isinstance(await world.ready("e"), Refusal), "its program still runs"
    await until_clients(world, 0)
    box = await world.starts("e")
    assert box.mps_partition is not None
    assert first.mps_partition is not None
    assert box.mps_partition != first.mps_partition
    assert not first.mps_partition.exists()


def test_shares_of_a_pod_have_one_partition_if_they_are_never_in_use_together() -> None:
    made, on = GivenShare(("main",), ("GPU-1",), 25, 25, LIMIT), ("GPU-2",)
    first, main = (dataclasses.replace(made, containers=("warm",), steps=Steps(0, 0)), Steps(1))
    beside = dataclasses.replace(made, containers=("side",), steps=main)
    entry = Allocation("a1", PodRef("ml"), (first, dataclasses.replace(made, gpu_uuids=on), beside, made))
    assert [slot(entry, share) for share in entry.shares] == ["a1/0", "a1/0", "a1/0", "a1/1"]
    with pytest.raises(ValueError, match="a1 has no such share"):
        slot(entry, dataclasses.replace(made, request_percent=7))


async def test_programs_start_in_the_partitions_of_the_next_daemon(world: World) -> None:
    """Its partitions have other names, and the containers still run."""
    box = await world.starts("a")
    assert box.mps_partition is not None
    name = box.mps_partition / "name"
    before = name.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deviceplugin.mps.daemon.FIRST_PAUSE_SECONDS", 0.05)
        os.kill(int(world.shares.files(world.uuid).pid_file.read_text()), signal.SIGKILL)
        async with asyncio.timeout(30):
            while name.read_text() == before or world.daemons.problem(world.uuid):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    with container.finishing(box.start(command(programs.obeys, 0))) as process:
        client = await asyncio.to_thread(Client, process)
        assert (client.first, await asyncio.to_thread(client.does, MULTIPROCESSORS)) == ("0 0", QUARTER)


async def test_a_gpu_without_enough_chunks_is_not_cut(world: World) -> None:
    world.node.allocations.clear()
    world.seconds += shares.STARTING_SECONDS
    await world.shares.step()
    world.partitions = 33
    refusal = await world.ready("a")
    assert isinstance(refusal, Refusal)
    assert (
        "has 27 chunks of multiprocessors: lower smPartitions from 33, and delete the pods that wait there"
        in refusal.reason
    )
    assert not world.shares.can_cut(world.uuid, 33), "also once the pods are gone"
    assert world.shares.can_cut(world.uuid, 25)
    world.seconds += shares.STARTING_SECONDS


async def test_short_jobs_in_a_row_wait_for_no_partition(world: World) -> None:
    names = set()
    for number in range(6):
        world.node.allocations.clear()
        world.node.add_pod(
            f"job-{number}", GivenShare(("main",), (world.uuid,), 25, 25, LIMIT), isolation=Isolation.MPS
        )
        files = await world.ready(f"job-{number}")
        assert isinstance(files, ClientFiles), files
        assert files.partition is not None
        names.add((files.partition / "name").read_text())
    assert len(names) <= 4


async def test_a_share_whose_partition_is_gone_gets_another(world: World) -> None:
    """Root in a client's container can remove an idle one."""
    box, other = await world.starts("a"), await world.starts("b")
    assert box.mps_partition is not None
    assert other.mps_partition is not None
    name = (box.mps_partition / "name").read_text()
    await world.daemons.send(world.uuid, f"sm_partition rm {name.replace('/', ' ')}")
    await world.starts("a")
    assert (box.mps_partition / "name").read_text() not in {name, (other.mps_partition / "name").read_text()}


async def test_an_interrupted_cut_into_other_sizes_is_repeated(world: World) -> None:
    world.node.allocations.clear()
    world.seconds += shares.STARTING_SECONDS
    await world.shares.step()
    files = world.daemons.files(world.uuid)
    control = Control(world.program, steps.environment(steps.for_shares(world.uuid), files))
    files.pipe.mkdir(parents=True, exist_ok=True)
    files.log.mkdir()
    await control.start(static=True)
    for _ in range(4):
        await control.send(f"sm_partition add {world.uuid} 2")
    assert isinstance(await world.ready("a"), ClientFiles)
    _, there = sm_partitions.listed(await control.send("lspart"), world.uuid)
    assert [partition.chunks for partition in there] == [6] * 4
    world.seconds += shares.STARTING_SECONDS


async def test_a_share_gets_no_partition_of_a_daemon_that_ends_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = world.daemons.partitioning[world.uuid]
    monkeypatch.setattr(world.daemons, "problem", lambda _: "it has ended" if lock.locked() else "")
    refusal = await world.ready("a")
    assert isinstance(refusal, Refusal)
    assert refusal.reason.endswith("takes no client now: it has ended")
    assert not world.shares.files(world.uuid).shares.joinpath(sm_partitions.key("of-a/0")).exists()


async def test_a_share_without_a_partition_says_so(world: World) -> None:
    box = await world.starts("a")
    assert box.mps_partition is not None
    name = box.mps_partition / "name"
    name.write_text("")
    with container.finishing(box.start(command(clients.starts_or_not))) as process:
        printed, errors = await asyncio.to_thread(process.communicate, timeout=60)
    assert printed.split()[:2] == ["0", "915"], "the daemon refuses its context"
    assert "this process gets no SM partition, because /run/gpushare-mps-partition/name is empty" in errors


LISTED = """GPU            Partition                             free   used   free  used  clients
                                                     chunks chunks SM    SM
GPU-aaaabbbb   -                                     12     4      100   32    -
GPU-aaaabbbb   Bz                                    -      4      -     32    Yes
GPU-ccccdddd   -                                     16     0      132   0     -
"""


def test_the_daemons_list_is_read() -> None:
    uuid = "GPU-aaaabbbb-1111"
    assert sm_partitions.listed(LISTED, uuid) == (16, [SmPartition(f"{uuid}/Bz", 4, is_used=True)])
    for answer in ("", "Static partitioning is off", LISTED.replace("12  ", "x   "), LISTED.replace("aaaa", "eeee")):
        with pytest.raises(ControlError, match=f"the MPS daemon lists no SM partitions of {uuid}"):
            sm_partitions.listed(answer, uuid)
