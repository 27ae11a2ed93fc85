"""Mode changes beyond the pairs of modes, each case on its own node. Run as a program: DIRECTORY [STORY …]."""

from __future__ import annotations

import dataclasses
import os
from typing import Final

import pynvml

from deviceplugin.hardware import nvml, nvml_call
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu
from tests import builders
from tests.deviceplugin import simulated
from tests.deviceplugin.modes import modes_node
from tests.deviceplugin.modes.modes_node import CONFIGS, GPU, DiedError, Node


async def exclusive_process_mode_is_undone_on_a_gpu_in_use(node: Node) -> None:
    """Running shares go on, but new ones would fail with CUDA_ERROR_DEVICE_UNAVAILABLE."""
    await node.reach("fractional")
    assert node.cluster.node is not None
    entry = builders.allocation("a1", node.uuids[0])
    node.cluster.node = dataclasses.replace(node.cluster.node, allocations=(entry,))
    for again in (False, True):
        await node.exclusive(node.uuids[0], True)
        if again:  # also if it was set before the agent started
            await node.end()
            node.start()
        await node.step()
        assert node.facts() == node.used_as("fractional")
        assert node.modes == ["fractional"] * 4, node.modes
        assert not node.pending, node.pending


async def the_users_of_a_gpu_are_reported_while_other_gpus_change(node: Node) -> None:
    await node.reach("fractional")
    assert node.cluster.node is not None
    entry = builders.allocation("a1", node.uuids[0])
    node.cluster.node = dataclasses.replace(node.cluster.node, allocations=(entry,))
    messages = []

    async def enter(gpu: HardwareGpu, assignment: Assignment) -> None:
        messages.append(node.pending)

    node.deadly.set_up = enter  # type: ignore[method-assign]
    await node.reach("exclusive")
    assert node.modes == ["fractional…", *["exclusive"] * 3], node.modes
    assert len(messages) == 3
    assert all("once it is not used any more by pod default/trainer" in pending for pending in messages), messages


async def a_gpu_that_cannot_be_repaired_is_quarantined_and_reported_once(node: Node) -> None:
    await node.reach("fractional")

    def refuse(uuid: str, *, exclusive: bool) -> None:
        raise nvml_call.NvmlError("nvmlDeviceSetComputeMode failed: Insufficient Permissions", 4)

    await node.exclusive(node.uuids[1], True)
    node.mig.set_exclusive_process = refuse  # type: ignore[method-assign]
    try:
        await node.step(times=5)
    finally:
        del node.mig.set_exclusive_process
    assert node.modes == ["fractional", "fractional…", "fractional", "fractional"], node.modes
    assert "its compute mode is EXCLUSIVE_PROCESS, which allows one process only" in node.pending, node.pending
    assert f"run `nvidia-smi -i {node.uuids[1]} -c 0`" in node.pending, node.pending
    (event,) = [line for line in node.cluster.told if line.startswith("GpuSetAside")]
    assert event.startswith(
        f"GpuSetAside GPU 1 ({node.uuids[1]}) is configured as fractional but cannot be used: its compute"
    )
    await node.step()
    assert node.modes == ["fractional"] * 4
    assert not node.pending


async def a_gpu_that_an_administrator_prohibited_stays_closed(node: Node) -> None:
    await node.reach("exclusive")
    handle = pynvml.nvmlDeviceGetHandleByUUID(node.uuids[3])
    pynvml.nvmlDeviceSetComputeMode(handle, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    await node.step()
    assert node.modes[3] == "exclusive…"
    assert "its compute mode is PROHIBITED, which allows no process" in node.pending
    assert node.facts()["compute"][3] == "PROHIBITED"
    await node.exclusive(node.uuids[3], False)
    await node.step()
    assert node.modes == ["exclusive"] * 4


async def mig_turned_on_by_hand_closes_the_gpu(node: Node) -> None:
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


async def deleted_mig_devices_are_created_again_next_to_those_in_use(node: Node) -> None:
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


async def mig_devices_created_by_hand_are_offered_if_none_are_configured(node: Node) -> None:
    node.cluster.entries["empty"] = "version: v1\nflags: {migStrategy: mixed}\nmig: all-enabled\n"
    await node.reach("empty")
    uuid = node.uuids[0]
    geometry = node.mig.mig_geometry(uuid)
    assert geometry is not None
    kind = next(kind for kind in geometry.kinds if str(kind.profile) == "3g.20gb")
    node.mig.create_compute_instance(uuid, node.mig.create_gpu_instance(uuid, kind, None), 3)
    await node.step()
    assert node.modes == ["mig"] * 4, node.modes
    assert len(node.in_force.value.offered["nvidia.com/mig-3g.20gb"]) == 1


async def a_gpu_that_lost_its_mig_mode_is_not_offered_whole(node: Node) -> None:
    """On newer models a reset turns MIG off."""
    await node.reach("mig")
    node.cut(0, enabled=False)
    await node.observation.refresh()
    await node.kubelet.holder.stop(None)  # so that the agent must not repair it
    await node.agent.step()
    assert GPU not in node.in_force.value.offered, node.in_force.value.offered[GPU]
    assert "it has MIG off, but should have 2 × 3g.20gb" in node.pending, node.pending
    assert "it is unknown which pods have devices of it" in node.pending, node.pending


async def a_missing_gpu_does_not_affect_the_others(node: Node) -> None:
    """The configurations name or count GPUs, and the next agent finds one GPU fewer, with other numbers."""
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
        left = [gpu for gpu in snapshot.gpus if gpu.uuid != gone]
        gpus = tuple(dataclasses.replace(gpu, index=index) for index, gpu in enumerate(left))
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
        assert [gpu.index for gpu in node.observation.hardware_gpus] == [0, 1, 2]
        assert node.modes == [mode for index, mode in enumerate(modes) if index != 1], node.modes
        valid = next(condition for condition in node.config_status.value.conditions if condition.type == "ConfigValid")
        assert valid.status == "True", valid
        assert f"GPU 1 ({gone}) is gone" in valid.message, valid
        assert not node.pending, node.pending
        del node.opened.snapshot
        await node.step()


async def a_hot_plugged_gpu_reinitialises_the_driver(node: Node) -> None:
    """NVML only sees GPUs that were present when it was initialised. The kernel module lists new ones."""
    begun = []
    reinitialize = node.opened.reinitialize
    node.opened.reinitialize = lambda: (begun.append(1), reinitialize())[1]  # type: ignore[method-assign,func-returns-value]
    plugged = node.directory / "driver" / "nvidia" / "gpus"
    await node.reach("exclusive")
    assert not begun
    for expected in (1, 2):
        (plugged / f"0000:0{expected}:00.0").mkdir(parents=True)
        await node.step()
        assert len(begun) == expected, begun
        assert node.modes == ["exclusive"] * 4, node.modes


async def modes_in_force_are_served_if_their_configuration_is_invalid(node: Node) -> None:
    await node.reach("time-slicing")
    await node.end()
    text = node.checkpoint.read_text()
    assert "replicas: 4" in text
    node.checkpoint.write_text(text.replace("replicas: 4", "replicas: 1"))
    node.cluster.entries["time-slicing"] = "version: v2\n"
    node.start()
    await node.step()
    assert node.modes == ["time-slicing"] * 4, node.modes
    assert len(node.in_force.value.offered[GPU]) == 16
    valid = next(condition for condition in node.config_status.value.conditions if condition.type == "ConfigValid")
    assert valid.status == "False", valid


async def a_first_agent_waits_for_the_configuration(node: Node) -> None:
    node.cluster.is_known = False
    await node.step()
    assert not node.published.is_set()
    assert not node.advertised.value
    node.cluster.is_known = True
    await node.reach("mps")
    assert node.facts() == node.used_as("mps")
    # The next agent has a checkpoint and serves it.
    await node.end()
    node.start()
    node.cluster.is_known = False
    await node.step()
    assert node.modes == ["mps"] * 4


async def a_daemon_is_restarted_for_other_limits(node: Node) -> None:
    """A running MPS server keeps the limits that it started with."""
    await node.reach("mps")
    before = [node.daemons.files(uuid).pid_file.read_text() for uuid in node.uuids]
    node.cluster.entries["mps"] = CONFIGS["mps"].replace("replicas: 2", "replicas: 4")
    await node.step()
    after = [node.daemons.files(uuid).pid_file.read_text() for uuid in node.uuids]
    assert not set(before) & set(after)
    limits = (node.daemons.files(node.uuids[0]).pipe / "limits").read_text()
    assert "default_active_thread_percentage 25.0" in limits, limits


async def the_next_agent_resets_a_time_slice(node: Node) -> None:
    called = node.directory / "called"
    program = node.directory / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >>{called}\n')
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    node.cluster.entries["long"] = CONFIGS["time-slicing"].replace("replicas: 4", "replicas: 4, interval: long")
    await node.reach("long")
    assert called.read_text().count("--set-timeslice=3") == 4
    # The driver forgets it at a reset.
    await simulated.change("fail", node.gpus, "2", "lost")
    await node.step()
    await simulated.change("heal", node.gpus, "2")
    await node.step()
    assert called.read_text().count("--set-timeslice=3") == 5
    node.cluster.label = "exclusive"
    node.deadly.at = "tear_down"
    try:
        await node.step()
    except DiedError:
        await node.end()
        node.start()
    node.deadly.at = ""
    called.write_text("")
    await node.step()
    assert [line.split()[2] for line in called.read_text().splitlines() if line.endswith("=0")] == node.uuids


async def a_labeled_configuration_waits_for_the_containers_of_another_plugin(node: Node) -> None:
    node.cluster.is_borrowing, node.cluster.entries = True, dict(CONFIGS, default=CONFIGS["exclusive"])
    await node.step()
    assert node.in_force.value.borrows
    node.cluster.is_borrowing = False
    await node.step()
    assert node.in_force.value.borrows, "a default ended it"
    node.kubelet.pods["whole"] = GPU, [node.uuids[0]]
    await node.reach("exclusive")
    assert node.in_force.value.borrows
    said = [condition.message for condition in node.config_status.value.conditions]
    assert any(f"another device plugin has given {node.uuids[0]} to containers" in message for message in said), said
    del node.kubelet.pods["whole"]
    await node.step()
    assert not node.in_force.value.borrows
    assert node.modes == ["exclusive"] * 4, node.modes


STORIES: Final = modes_node.stories(globals())

if __name__ == "__main__":
    modes_node.tell(STORIES)
