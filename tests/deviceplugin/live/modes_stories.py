"""What the pairs of modes do not tell, each on a node of its own. Run as a program: GPUS DIRECTORY STORY."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pynvml

from deviceplugin.hardware import inventory, nvml, nvml_call
from deviceplugin.live import entering, mode_checkpoint, setup
from gpushare.modes.hardware_gpu import HardwareGpu
from tests import builders
from tests.deviceplugin import simulated, waiting
from tests.deviceplugin.live.modes_node import CONFIGS, GPU, DiedError, Node, running

Story = Callable[[Node], Awaitable[None]]
MANY: Final = ", ".join(
    f"{part}c.{slices}g.{memory}gb: 7"
    for slices, memory in ((2, 10), (3, 20), (4, 20), (7, 40))
    for part in range(1, slices)
)


async def one_process_only_is_undone_though_the_gpu_is_in_use(node: Node) -> None:
    """Shares run on; new ones would die with CUDA_ERROR_DEVICE_UNAVAILABLE for ever."""
    await node.reach("fractional")
    assert node.cluster.node is not None
    entry = builders.allocation("a1", node.uuids[0])
    node.cluster.node = dataclasses.replace(node.cluster.node, allocations=(entry,))
    for again in (False, True):
        await node.exclusive(node.uuids[0], True)
        if again:  # also when it was so before the agent came
            await node.end()
            node.start()
        await node.step()
        assert node.facts() == node.used_as("fractional")
        assert node.modes == ["fractional"] * 4, node.modes
        assert not node.pending, node.pending


async def who_is_in_the_way_is_told_also_while_other_gpus_are_changed(node: Node) -> None:
    await node.reach("fractional")
    assert node.cluster.node is not None
    entry = builders.allocation("a1", node.uuids[0])
    node.cluster.node = dataclasses.replace(node.cluster.node, allocations=(entry,))
    messages = []

    async def enter(*_: object) -> None:
        messages.append(node.pending)

    node.deadly.enter = enter  # type: ignore[method-assign]
    await node.reach("exclusive")
    assert node.modes == ["fractional…", *["exclusive"] * 3], node.modes
    assert len(messages) == 3
    assert all("once it is not used any more by pod default/trainer" in pending for pending in messages), messages


async def what_may_not_be_undone_is_set_aside_and_told_once(node: Node) -> None:
    await node.reach("fractional")

    def refuse(uuid: str, *, exclusive: bool) -> None:
        raise nvml_call.NvmlError("nvmlDeviceSetComputeMode failed: Insufficient Permissions", 4)

    await node.exclusive(node.uuids[1], True)
    node.mig.set_exclusive_process = refuse  # type: ignore[method-assign]
    try:
        await node.step(times=5)
    finally:
        del node.mig.set_exclusive_process  # type: ignore[attr-defined]
    assert node.modes == ["fractional", "fractional…", "fractional", "fractional"], node.modes
    assert "its compute mode is EXCLUSIVE_PROCESS, which lets a single process use it" in node.pending, node.pending
    assert f"run `nvidia-smi -i {node.uuids[1]} -c 0`" in node.pending, node.pending
    (event,) = [line for line in node.cluster.told if line.startswith("GpuSetAside")]
    assert event.startswith(f"GpuSetAside GPU 1 ({node.uuids[1]}) is to be fractional, and cannot be used: its compute")
    await node.step()
    assert node.modes == ["fractional"] * 4
    assert not node.pending


async def a_gpu_that_somebody_has_closed_is_not_opened(node: Node) -> None:
    await node.reach("exclusive")
    handle = pynvml.nvmlDeviceGetHandleByUUID(node.uuids[3])
    pynvml.nvmlDeviceSetComputeMode(handle, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    await node.step()
    assert node.modes[3] == "exclusive…"
    assert "its compute mode is PROHIBITED, which lets nobody use it" in node.pending
    assert node.facts()["compute"][3] == "PROHIBITED"
    await node.exclusive(node.uuids[3], False)
    await node.step()
    assert node.modes == ["exclusive"] * 4


async def mig_that_somebody_has_turned_on_keeps_shares_away(node: Node) -> None:
    for mode in ("fractional", "time-slicing", "mps"):
        await node.reach(mode)
        node.cut(0, enabled=True)
        await node.step()
        assert node.modes[0] == f"{mode}…", node.modes
        assert "it is in MIG mode with no MIG devices" in node.pending, node.pending
        node.cut(0, enabled=False)
        await node.step()
        assert node.modes == [mode] * 4
        assert not node.pending


async def mig_devices_that_vanish_are_made_again_beside_those_in_use(node: Node) -> None:
    await node.reach("mig")
    uuid = node.uuids[0]
    first, second = node.mig.mig_instances(uuid)
    node.kubelet.pods["train"] = ("nvidia.com/mig-3g.20gb", [first.parts[0].uuid])
    node.mig.destroy_compute_instance(uuid, second.id, second.parts[0].id)
    node.mig.destroy_gpu_instance(uuid, second.id)
    await node.step()
    assert node.facts() == node.used_as("mig")
    assert first.parts[0].uuid in {mig_device.uuid for mig_device in node.mig.mig_devices(uuid)}
    assert len(node.in_force.value.offered["nvidia.com/mig-3g.20gb"]) == 8
    assert not node.pending, node.pending


async def mig_without_devices_is_for_those_who_make_their_own(node: Node) -> None:
    node.cluster.entries["empty"] = "version: v1\nflags: {migStrategy: mixed}\nmig: all-enabled\n"
    await node.reach("empty")
    uuid = node.uuids[0]
    kind = next(kind for kind in node.mig.mig_geometry(uuid).kinds if str(kind.profile) == "3g.20gb")
    node.mig.create_compute_instance(uuid, node.mig.create_gpu_instance(uuid, kind, None), 3)
    await node.step()
    assert node.modes == ["mig"] * 4, node.modes
    assert len(node.in_force.value.offered["nvidia.com/mig-3g.20gb"]) == 1


async def a_gpu_that_lost_its_mig_mode_is_not_offered_whole(node: Node) -> None:
    """A reset takes the mode of newer models along."""
    await node.reach("mig")
    node.cut(0, enabled=False)
    await node.observation.look()
    await node.kubelet.holder.stop(None)  # so that nothing may be done to it
    await node.agent.step()
    assert GPU not in node.in_force.value.offered, node.in_force.value.offered[GPU]
    assert "it has MIG off, and is to have 2 × 3g.20gb" in node.pending, node.pending
    assert "who has devices of it is unknown" in node.pending, node.pending


async def a_missing_gpu_takes_nothing_from_the_others(node: Node) -> None:
    """Configurations that name or count GPUs, and an agent that finds one less, with other numbers."""
    listed = f"{{name: {GPU}, rename: nvidia.com/slice, replicas: 3, devices: [3]}}"
    node.cluster.entries = {
        "counted": f"version: v1\nsharing: {{fractional: {{resources: [{{name: {GPU}, devices: 4}}]}}}}\n",
        "listed": (
            f"version: v1\nsharing:\n  timeSlicing: {{resources: [{listed}]}}\n"
            f"  fractional: {{resources: [{{name: {GPU}, devices: [0, 2]}}]}}\n"
        ),
    }
    gone, snapshot_of_all = node.uuids[1], node.opened.snapshot

    def without_it() -> nvml.NvmlSnapshot:
        snapshot = snapshot_of_all()
        left = [card for card in snapshot.gpus if card.uuid != gone]
        gpus = tuple(dataclasses.replace(card, index=index) for index, card in enumerate(left))
        return dataclasses.replace(snapshot, gpus=gpus)

    for label, modes in (
        ("counted", ["fractional"] * 4),
        ("listed", ["fractional", "exclusive", "fractional", "time-slicing"]),
    ):
        await node.reach(label)
        assert node.modes == modes, node.modes
        await node.end()
        node.opened.snapshot = without_it  # type: ignore[method-assign]
        node.start()
        await node.step()
        assert [card.index for card in node.observation.card_list] == [0, 1, 2]
        assert node.modes == [mode for index, mode in enumerate(modes) if index != 1], node.modes
        valid = next(condition for condition in node.statement.value.conditions if condition.type == "ConfigValid")
        assert valid.status == "True", valid
        assert f"GPU 1 ({gone}) is not there" in valid.message, valid
        assert not node.pending, node.pending
        del node.opened.snapshot
        await node.step()


async def when_a_gpu_is_plugged_in_the_driver_is_begun_anew(node: Node) -> None:
    """NVIDIA's library sees no GPU that was not there when it was initialised; the kernel's module tells of it."""
    begun = []
    begin_anew = node.opened.begin_anew
    node.opened.begin_anew = lambda: (begun.append(1), begin_anew())[1]  # type: ignore[method-assign,func-returns-value]
    plugged = node.directory / "driver" / "nvidia" / "gpus"
    await node.reach("exclusive")
    assert not begun
    for expected in (1, 2):
        (plugged / f"0000:0{expected}:00.0").mkdir(parents=True)
        await node.step()
        assert len(begun) == expected, begun
        assert node.modes == ["exclusive"] * 4, node.modes


async def what_is_in_force_is_served_though_its_configuration_cannot_be_read(node: Node) -> None:
    await node.reach("time-slicing")
    await node.end()
    text = node.book.read_text()
    assert "replicas: 4" in text
    node.book.write_text(text.replace("replicas: 4", "replicas: 1"))
    node.cluster.entries["time-slicing"] = "version: v2\n"
    node.start()
    await node.step()
    assert node.modes == ["time-slicing"] * 4, node.modes
    assert len(node.in_force.value.offered[GPU]) == 16
    valid = next(condition for condition in node.statement.value.conditions if condition.type == "ConfigValid")
    assert valid.status == "False", valid


async def a_first_agent_waits_for_what_the_cluster_wants(node: Node) -> None:
    node.cluster.is_known = False
    await node.step()
    assert not node.agent.said.is_set()
    assert not node.advertised.value
    node.cluster.is_known = True
    await node.reach("mps")
    assert node.facts() == node.used_as("mps")
    # One that comes after it has a book, and serves that.
    await node.end()
    node.start()
    node.cluster.is_known = False
    await node.step()
    assert node.modes == ["mps"] * 4


async def a_daemon_is_started_anew_for_other_limits(node: Node) -> None:
    """The server that it has for its clients keeps those that it began with."""
    await node.reach("mps")
    before = [node.daemons.places(uuid).pid_file.read_text() for uuid in node.uuids]
    node.cluster.entries["mps"] = CONFIGS["mps"].replace("replicas: 2", "replicas: 4")
    await node.step()
    after = [node.daemons.places(uuid).pid_file.read_text() for uuid in node.uuids]
    assert not set(before) & set(after)
    limits = (node.daemons.places(node.uuids[0]).pipe / "limits").read_text()
    assert "default_active_thread_percentage 25.0" in limits, limits


async def a_time_slice_is_undone_by_the_next_agent_too(node: Node) -> None:
    called = node.directory / "called"
    program = node.directory / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >>{called}\n')
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    node.cluster.entries["long"] = CONFIGS["time-slicing"].replace("replicas: 4", "replicas: 4, interval: long")
    await node.reach("long")
    assert called.read_text().count("--set-timeslice=3") == 4
    # A reset makes the driver forget it.
    await simulated.change("fail", node.gpus, "2", "lost")
    await node.step()
    await simulated.change("heal", node.gpus, "2")
    await node.step()
    assert called.read_text().count("--set-timeslice=3") == 5
    node.cluster.label = "exclusive"
    node.deadly.at = "leave"
    try:
        await node.step()
    except DiedError:
        await node.end()
        node.start()
    node.deadly.at = ""
    called.write_text("")
    await node.step()
    assert [line.split()[2] for line in called.read_text().splitlines() if line.endswith("=0")] == node.uuids


async def no_configuration_keeps_the_loop_from_others(node: Node) -> None:
    """What an administrator writes may be long and of no use; leases and registrations go on meanwhile."""
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
        # Who keeps the interpreter works meanwhile; by the clock, so does whoever else is on this machine. A turn takes
        # some 15 ms of work where a thread reads the configuration, and 200 where the loop does.
        worked = time.process_time() - worked
        assert ticks * 0.05 >= worked - 0.5, f"{label}: {ticks} turns of the loop in {worked:.1f} s of work"


async def a_full_disk_leaves_all_as_it_is_until_it_has_room(node: Node) -> None:
    await node.reach("fractional")
    write = mode_checkpoint.write

    def refuse(path: Path, _: mode_checkpoint.Checkpoint) -> None:
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


async def a_slow_disk_keeps_nobody_waiting_and_who_is_cancelled_at_it_knows_what_is_on_it(node: Node) -> None:
    await node.reach("fractional")
    write = mode_checkpoint.write
    begun, may_end = threading.Event(), threading.Event()

    def write_slowly(path: Path, book: mode_checkpoint.Checkpoint) -> None:
        begun.set()
        may_end.wait(30)
        write(path, book)

    def refuse(path: Path, _: mode_checkpoint.Checkpoint) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    try:
        mode_checkpoint.write = write_slowly
        node.cluster.label = "exclusive"
        step = asyncio.create_task(node.step())
        await waiting.until(begun.is_set)  # which a loop that waits for the disk never gets to see
        step.cancel()
        await asyncio.sleep(0.1)
        assert not step.done()
        may_end.set()
        await asyncio.wait((step,))
        assert step.cancelled()
        mode_checkpoint.write = refuse  # so that what is told is what was in memory
        await node.step()
    finally:
        may_end.set()
        mode_checkpoint.write = write
    on_disk = mode_checkpoint.read(node.book)
    assert on_disk is not None
    assert on_disk.current.name == node.statement.value.config == "exclusive"


async def what_is_tried_in_vain_rests_although_it_wakes_the_agent(node: Node) -> None:
    """As the daemons of MPS do, whatever becomes of a start."""
    await node.reach("fractional")
    tried: list[str] = []

    async def enter(card: HardwareGpu, _: object) -> None:
        tried.append(card.uuid)
        raise setup.SetUpError("the keeper is not there")

    usual, node.deadly.enter = node.deadly.enter, enter  # type: ignore[method-assign]
    rest_seconds = entering.REST_SECONDS
    node.cluster.label = "exclusive"
    try:
        entering.REST_SECONDS = 3600.0  # type: ignore[misc]
        for _ in range(20):
            pause_seconds = await node.agent.step()
        assert sorted(tried) == sorted(node.uuids), "each once"
        assert 0 < pause_seconds <= entering.REST_SECONDS
        node.deadly.enter = usual  # type: ignore[method-assign]
        await node.step()
        assert node.modes == ["exclusive…"] * 4, node.modes
        entering.REST_SECONDS = 0.0  # type: ignore[misc]
        await node.step()
    finally:
        entering.REST_SECONDS = rest_seconds  # type: ignore[misc]
    assert node.modes == ["exclusive"] * 4, node.modes


async def what_is_seen_while_a_step_waits_for_the_driver_is_told(node: Node) -> None:
    await node.reach("fractional")
    answers = asyncio.Event()

    async def hang(*_: object, **__: object) -> dict[str, tuple[str, ...]]:
        await answers.wait()
        return {}

    node.witness.users = hang  # type: ignore[method-assign, assignment]
    node.cluster.label = "exclusive"
    stepping = asyncio.create_task(node.agent.step())
    async with asyncio.timeout(60):
        while node.modes != ["fractional…"] * 4:  # noqa: ASYNC110 - closed, and now it asks who uses them
            await asyncio.sleep(0.05)
    node.seen.publish(inventory.unanswered(node.seen.gpus, seconds=60.0))
    node.agent.say_again()
    assert not any(card.healthy for card in node.offer.gpus)
    answers.set()
    await stepping


STORIES: Final[dict[str, Story]] = {
    name: story for name, story in globals().items() if asyncio.iscoroutinefunction(story) and story is not running
}


async def main(gpus: Path, directory: Path, story: str) -> None:
    """Tell one."""
    async with running(gpus, directory) as node:
        await STORIES[story](node)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
