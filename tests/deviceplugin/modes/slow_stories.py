"""Slow or failing files, disks and drivers, each case on its own node. Run as a program: DIRECTORY [STORY …]."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path
from typing import Final

from deviceplugin.hardware import inventory
from deviceplugin.modes import mode_checkpoint, setup
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu
from tests.deviceplugin import waiting
from tests.deviceplugin.modes import modes_node
from tests.deviceplugin.modes.modes_node import CONFIGS, Node

MANY: Final = ", ".join(
    f"{part}c.{slices}g.{memory}gb: 7"
    for slices, memory in ((2, 10), (3, 20), (4, 20), (7, 40))
    for part in range(1, slices)
)


async def a_large_configuration_does_not_block_the_event_loop(node: Node) -> None:
    """A configuration can be long and useless, but leases and registrations must go on meanwhile."""
    await node.reach("mig")
    plain = "1g.5gb: 7, 1g.10gb: 4, 2g.10gb: 3, 3g.20gb: 2, 4g.20gb: 1, 7g.40gb: 1"
    aliases = "\n".join(
        f"{key}: &{key} [{', '.join([f'*{other}'] * 10)}]" for other, key in zip("abcdefg", "bcdefgh", strict=True)
    )
    node.cluster.entries = {
        "mig": CONFIGS["mig"],
        "profiles": (
            "version: v1\nflags: {migStrategy: mixed}\n"
            f"mig: [{{devices: all, mig-enabled: true, mig-devices: {{{plain}, {MANY}}}}}]\n"
        ),
        "aliases": f"a: &a [x, x]\n{aliases}\nversion: v1\n",
        "long": "version: v1\nflags: {" + ", ".join(f"k{number}: {number}" for number in range(16_000)) + "}\n",
        "pattern": "version: v1\nresources: {gpus: [{pattern: '" + "*a" * 100 + "b', name: nvidia.com/gpu}]}\n",
    }
    for label in list(node.cluster.entries)[1:]:
        node.cluster.label = label
        ticks, ended = 0, asyncio.create_task(node.step(times=1))
        began, worked = time.monotonic(), time.process_time()
        while not ended.done():
            await asyncio.sleep(0.01)
            ticks += 1
            assert time.monotonic() - began < 60, label
        await ended
        # CPU time shows whether parsing holds the interpreter; wall-clock time would also count other processes of the
        # machine. A turn of the loop takes some 15 ms of CPU if a thread parses the configuration, and 200 ms if the
        # loop does.
        worked = time.process_time() - worked
        assert ticks * 0.05 >= worked - 0.5, f"{label}: {ticks} turns of the loop in {worked:.1f} s of work"


async def a_full_disk_delays_the_change(node: Node) -> None:
    await node.reach("fractional")
    write = mode_checkpoint.write

    def refuse(path: Path, checkpoint: mode_checkpoint.Checkpoint) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    mode_checkpoint.write = refuse
    try:
        await node.reach("exclusive")
        assert node.modes == ["fractional…"] * 4, node.modes
        assert "modes.json cannot be written: No space left on device" in node.pending, node.pending
        assert node.facts() == node.used_as("fractional")
    finally:
        mode_checkpoint.write = write
    await node.step()
    assert node.modes == ["exclusive"] * 4, node.modes


async def a_slow_disk_does_not_block_and_a_cancelled_write_takes_effect(node: Node) -> None:
    await node.reach("fractional")
    write = mode_checkpoint.write
    begun, may_end = threading.Event(), threading.Event()

    def write_slowly(path: Path, checkpoint: mode_checkpoint.Checkpoint) -> None:
        begun.set()
        may_end.wait(30)
        write(path, checkpoint)

    def refuse(path: Path, checkpoint: mode_checkpoint.Checkpoint) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    try:
        mode_checkpoint.write = write_slowly
        node.cluster.label = "exclusive"
        step = asyncio.create_task(node.step())
        await waiting.until(begun.is_set)  # a loop that blocks on the disk never gets here
        step.cancel()
        await asyncio.sleep(0.1)
        assert not step.done()
        may_end.set()
        await asyncio.wait((step,))
        assert step.cancelled()
        mode_checkpoint.write = refuse  # so that the status shows the state in memory
        await node.step()
    finally:
        may_end.set()
        mode_checkpoint.write = write
    on_disk = mode_checkpoint.read(node.checkpoint)
    assert on_disk is not None
    assert on_disk.current.name == node.config_status.value.config == "exclusive"


async def a_failed_setup_backs_off_although_it_wakes_the_agent(node: Node) -> None:
    """MPS daemons wake the reconciler after every attempt to start them."""
    await node.reach("fractional")
    tried: list[str] = []

    async def enter(gpu: HardwareGpu, assignment: Assignment) -> None:
        tried.append(gpu.uuid)
        raise setup.SetUpError("the keeper is not there")

    usual, node.deadly.set_up = node.deadly.set_up, enter  # type: ignore[method-assign]
    backoff_seconds = setup.BACKOFF_SECONDS
    node.cluster.label = "exclusive"
    try:
        setup.BACKOFF_SECONDS = 3600.0  # type: ignore[misc]
        for _ in range(20):
            pause_seconds = await node.agent.step()
        assert sorted(tried) == sorted(node.uuids), "each once"
        assert 0 < pause_seconds <= setup.BACKOFF_SECONDS
        node.deadly.set_up = usual  # type: ignore[method-assign]
        await node.step()
        assert node.modes == ["exclusive…"] * 4, node.modes
        setup.BACKOFF_SECONDS = 0.0  # type: ignore[misc]
        await node.step()
    finally:
        setup.BACKOFF_SECONDS = backoff_seconds  # type: ignore[misc]
    assert node.modes == ["exclusive"] * 4, node.modes


async def observations_are_published_while_a_step_waits_for_the_driver(node: Node) -> None:
    await node.reach("fractional")
    answers = asyncio.Event()

    async def hang(*_: object, **__: object) -> dict[str, tuple[str, ...]]:
        await answers.wait()
        return {}

    node.gpu_users.users = hang  # type: ignore[method-assign]
    node.cluster.label = "exclusive"
    stepping = asyncio.create_task(node.agent.step())
    async with asyncio.timeout(60):
        while node.modes != ["fractional…"] * 4:  # noqa: ASYNC110 - closed, and now it asks who uses them
            await asyncio.sleep(0.05)
    node.seen.publish(inventory.mark_silent(node.seen.gpus, seconds=60.0))
    node.agent.republish()
    assert not any(gpu.healthy for gpu in node.gpus_with_modes.gpus)
    answers.set()
    await stepping


STORIES: Final = modes_node.stories(globals())

if __name__ == "__main__":
    modes_node.tell(STORIES)
