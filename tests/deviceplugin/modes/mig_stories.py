"""MIG devices for shares, each case on its own node. Run as a program: DIRECTORY [STORY …]."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Final

from deviceplugin.hardware import nvml_call
from deviceplugin.hardware.partitioner import Present
from deviceplugin.mig import mig_devices
from deviceplugin.state.node_state import MigMode
from gpushare import contract, ledger, mig_shares
from gpushare.allocation import Isolation, MigInstance
from gpushare.gpunode import GpuNode
from gpushare.mig.instance_layout import ProfileGeometry
from gpushare.refusal import Refusal
from tests import builders
from tests.deviceplugin.modes import modes_node
from tests.deviceplugin.modes.modes_node import CONFIGS, GPU, DiedError, Node


async def ready(node: Node, mig: str = "") -> None:
    """Have the configuration in force that lets shares of this isolation come."""
    mig_devices.TRIES = 60  # type: ignore[misc]
    fractional = f"{{name: {GPU}, isolations: [arbiter, mig]}}"
    node.cluster.entries["on-demand"] = f"version: v1\nsharing: {{fractional: {{resources: [{fractional}]}}}}\n{mig}"
    await node.reach("on-demand")
    assert {gpu.isolations for gpu in node.gpus_with_modes.gpus} == {(Isolation.ARBITER, Isolation.MIG)}
    node.cluster.node = GpuNode("node-a", node.gpus_with_modes.gpus)


def known(node: Node) -> GpuNode:
    assert node.cluster.node is not None
    return node.cluster.node


def place(node: Node, identity: str, profile: str) -> MigInstance:
    """Place a share with a device of this profile on the first GPU, as the webhook does."""
    gpu = known(node).gpus[0]
    kind = next(kind for kind in gpu.mig_geometry if str(kind.profile) == profile)
    device = mig_shares.place(gpu, kind, mig_shares.instances(known(node).allocations, gpu.uuid))
    assert device is not None
    entry = builders.allocation(identity, gpu.uuid, request=0, memory_gib=1, isolation=Isolation.MIG)
    entry = dataclasses.replace(entry, shares=(mig_shares.on_device(entry.shares[0], device),))
    node.cluster.node = ledger.reserve(known(node), entry)
    return device


def end(node: Node, *identities: str) -> None:
    node.cluster.node = ledger.release(known(node), identities)


async def given(node: Node, device: MigInstance) -> str:
    answer = await node.mig_shares.device(node.uuids[0], device)
    assert isinstance(answer, str), answer
    return answer


def there(node: Node) -> list[str]:
    """Return the MIG devices of the first GPU by place, with its MIG mode first."""
    mode = node.mig.mig_mode(node.uuids[0])
    assert mode is not None
    made = node.mig.mig_devices(node.uuids[0])
    return ["on" if mode.current else "off", *sorted(f"{device.profile}@{device.start}" for device in made)]


def offered(node: Node) -> list[Isolation]:
    return list(node.gpus_with_modes.gpus[0].isolations)


def after_idle(node: Node) -> None:
    node.seconds += mig_devices.STARTING_SECONDS + mig_devices.IDLE_SECONDS


async def device_is_cut_for_a_share_and_the_gpu_stays_fractional(node: Node) -> None:
    await ready(node)
    assert there(node) == ["off"]
    device = place(node, "a", "1g.5gb")
    await node.mig_shares.step()
    assert there(node) == ["on", "1g.5gb@6"]
    uuid = await given(node, device)
    (made,) = node.mig.mig_devices(node.uuids[0])
    assert made.uuid == uuid
    await node.step()
    assert node.modes == ["fractional"] * 4, node.modes
    assert not node.pending, node.pending
    assert [gpu.mig_profiles for gpu in node.gpus_with_modes.gpus] == [("1g.5gb",), (), (), ()]
    assert {gpu.isolations for gpu in node.gpus_with_modes.gpus} == {(Isolation.ARBITER, Isolation.MIG)}
    (entry,) = node.mig_shares.as_devices(known(node)).allocations
    assert entry.gpu_uuids == (uuid,)
    assert entry.shares[0].memory_bytes == device.memory_bytes
    assert node.mig_shares.parents == {uuid: node.uuids[0]}
    end(node, "a")
    audited = node.mig_shares.gpus(node.gpus_with_modes.gpus)
    assert sorted(gpu.uuid for gpu in audited) == sorted([uuid, *node.uuids[1:]]), "also once no share has it"
    assert audited[0].memory_bytes == device.memory_bytes


async def gpu_becomes_whole_a_while_after_its_last_share(node: Node) -> None:
    await ready(node)
    first, second = place(node, "a", "3g.20gb"), place(node, "b", "1g.5gb")
    uuid = await given(node, first)
    assert await given(node, second) != uuid
    end(node, "a")
    await node.mig_shares.step()
    assert await given(node, place(node, "c", "3g.20gb")) == uuid, "a free device is used again"
    end(node, "b", "c")
    await node.mig_shares.step()
    assert len(there(node)) == 3, "it stays cut, in case more such shares come"
    after_idle(node)
    await node.mig_shares.step()
    assert there(node) == ["off"]
    await node.step()
    assert not node.pending, node.pending


async def new_profile_takes_the_place_of_devices_of_ended_pods(node: Node) -> None:
    await ready(node)
    for name in "abc":
        await given(node, place(node, name, "1g.5gb"))
    end(node, "a", "b", "c")
    await given(node, place(node, "d", "7g.40gb"))
    assert there(node) == ["on", "7g.40gb@0"]


async def share_of_another_kind_waits_until_the_gpu_is_whole(node: Node) -> None:
    await ready(node)
    await given(node, place(node, "a", "1g.5gb"))
    end(node, "a")
    node.cluster.node = ledger.reserve(known(node), builders.allocation("b", node.uuids[0]))
    assert await node.mig_shares.whole(node.uuids[:2]) is None
    assert there(node) == ["off"]
    assert await node.mig_shares.whole(node.uuids[1:2]) is None


async def device_that_a_process_uses_is_kept_after_its_pod(node: Node) -> None:
    await ready(node)
    await given(node, place(node, "a", "1g.5gb"))
    read = node.mig_shares._partitions.read

    def busy(uuid: str) -> Present:
        present = read(uuid)
        used = (
            dataclasses.replace(made, parts=tuple(dataclasses.replace(part, busy=True) for part in made.parts))
            for made in present.instances
        )
        return dataclasses.replace(present, instances=tuple(used))

    node.mig_shares._partitions.read = busy  # type: ignore[method-assign]
    end(node, "a")
    after_idle(node)
    await node.mig_shares.step()
    assert there(node) == ["on", "1g.5gb@6"]
    mig_devices.TRIES = 2  # type: ignore[misc]
    refused = await node.mig_shares.whole(node.uuids[:1])
    assert isinstance(refused, Refusal)
    assert refused.reason.endswith("a process of an ended pod, or another program's MIG device, is still on it")
    refused = await node.mig_shares.device(node.uuids[0], place(node, "b", "7g.40gb"))  # type: ignore[assignment]
    assert isinstance(refused, Refusal)
    assert refused.reason.endswith("the MIG device 1g.5gb@6 that an ended pod still uses is in its place")


async def next_agent_goes_on_with_the_devices_that_are_there(node: Node) -> None:
    await ready(node, "mig: all-disabled\n")  # which is about devices that a configuration lists
    device = place(node, "a", "2g.10gb")
    uuid = await given(node, device)
    await node.end()
    node.start()
    (entry,) = node.mig_shares.as_devices(known(node)).allocations
    assert entry.gpu_uuids == (uuid,), "it is known before the driver has been asked"
    await node.step()
    await node.mig_shares.step()
    assert node.modes == ["fractional"] * 4, node.modes
    assert not node.pending, node.pending
    assert await given(node, device) == uuid
    end(node, "a")
    await node.mig_shares.step()
    after_idle(node)
    await node.mig_shares.step()
    assert there(node) == ["off"]


async def agent_that_dies_while_it_cuts_is_followed_by_one_that_completes(node: Node) -> None:
    await ready(node)
    device = place(node, "a", "2g.10gb")

    def die(*_: object) -> None:
        raise DiedError

    for name in ("create_gpu_instance", "create_compute_instance"):
        setattr(node.mig, name, die)
        try:
            await node.mig_shares.step()
            raise AssertionError("it did not die")
        except DiedError:
            delattr(node.mig, name)
        await node.end()
        node.start()
        await node.step()
        assert node.modes == ["fractional"] * 4, node.modes
    assert await given(node, device)
    assert there(node) == ["on", f"2g.10gb@{device.start}"]


async def device_of_another_program_is_never_destroyed(node: Node) -> None:
    await ready(node)
    uuid = await given(node, place(node, "a", "1g.5gb"))
    geometry = node.mig.mig_geometry(node.uuids[0])
    assert geometry is not None
    kind = next(kind for kind in geometry.kinds if str(kind.profile) == "1g.5gb")
    instance = node.mig.create_gpu_instance(node.uuids[0], kind, 5)
    node.mig.create_compute_instance(node.uuids[0], instance, 1)
    await node.step()
    assert node.modes[0] == "fractional…", "it takes no new shares"
    assert "it is in MIG mode with 2 × 1g.5gb" in node.pending, node.pending
    assert await given(node, place(node, "b", "4g.20gb")), "shares that were placed before get their device"
    mig_devices.TRIES = 2  # type: ignore[misc]
    refused = await node.mig_shares.device(node.uuids[0], place(node, "c", "1g.5gb"))
    assert isinstance(refused, Refusal)
    assert refused.reason.endswith("the MIG device 1g.5gb@5 of another program is in its place")
    assert uuid in {device.uuid for device in node.mig.mig_devices(node.uuids[0])}
    end(node, "a", "b", "c")
    after_idle(node)
    await node.mig_shares.step()
    after_idle(node)
    await node.mig_shares.step()
    assert there(node) == ["on", "1g.5gb@5"]


async def failure_of_the_driver_is_a_sentence_and_is_tried_again(node: Node) -> None:
    await ready(node)
    device = place(node, "a", "1g.5gb")

    def refuse(uuid: str, kind: ProfileGeometry, start: int | None) -> int:
        del uuid, kind, start
        raise nvml_call.NvmlError("nvmlDeviceCreateGpuInstance(GPU-1) failed: Insufficient Permissions", 4)

    node.mig.create_gpu_instance = refuse  # type: ignore[method-assign]
    mig_devices.TRIES = 2  # type: ignore[misc]
    for _ in range(2):
        answer = await node.mig_shares.device(node.uuids[0], device)
        assert isinstance(answer, Refusal)
        assert answer.reason == (
            f"the MIG device 1g.5gb@6 of GPU {node.uuids[0]} cannot be created: nvmlDeviceCreateGpuInstance(GPU-1) "
            "failed: Insufficient Permissions: give the agent config/components/mig"
        )
        node.seconds += mig_devices.REPORT_SECONDS
    assert len([note for note in node.cluster.told if "cannot be partitioned as its shares need it" in note]) == 1
    await node.step()
    assert offered(node) == [Isolation.ARBITER], "it takes no more such shares"
    del node.mig.create_gpu_instance
    assert await given(node, device)
    await node.step()
    assert offered(node) == [Isolation.ARBITER, Isolation.MIG]


async def gpu_that_needs_a_reset_takes_no_such_shares_and_is_left_as_it_is(node: Node) -> None:
    await ready(node)
    device = place(node, "a", "1g.5gb")
    asked = []

    def pending(uuid: str, *, enabled: bool) -> str:
        del uuid
        asked.append(enabled)
        return "In use by another client"

    node.mig.set_mig_mode = pending  # type: ignore[method-assign]
    answer = await node.mig_shares.device(node.uuids[0], device)
    assert isinstance(answer, Refusal)
    assert (
        "its MIG mode cannot be turned on (In use by another client): stop the programs that have it open, such as a "
        "monitoring agent; the agent tries again in 10 minutes"
    ) in answer.reason
    assert asked == [True, False], "nothing is left for the next reset"
    await node.mig_shares.step()
    assert asked == [True, False], "it is not tried again for a while"
    await node.step()
    assert [gpu.isolations for gpu in node.gpus_with_modes.gpus][:2] == [
        (Isolation.ARBITER,),
        (Isolation.ARBITER, Isolation.MIG),
    ]
    assert node.modes == ["fractional"] * 4
    del node.mig.set_mig_mode


async def gpu_that_loses_mig_mode_only_by_a_reset_takes_only_such_shares_until_then(node: Node) -> None:
    await ready(node)
    await given(node, place(node, "a", "1g.5gb"))
    end(node, "a")
    mig_mode, set_mode = node.mig.mig_mode, node.mig.set_mig_mode
    pending: set[str] = set()

    def mode(uuid: str) -> MigMode | None:
        read = mig_mode(uuid)
        return MigMode(current=True, pending=False) if uuid in pending else read

    def refuse(uuid: str, *, enabled: bool) -> str:
        assert not enabled
        pending.add(uuid)
        return "In use by another client"

    node.mig.mig_mode = mode  # type: ignore[method-assign]
    node.mig.set_mig_mode = refuse  # type: ignore[method-assign]
    await node.mig_shares.step()
    after_idle(node)
    await node.mig_shares.step()
    assert there(node) == ["on"]
    node.cluster.node = ledger.reserve(known(node), builders.allocation("b", node.uuids[0]))
    mig_devices.TRIES = 2  # type: ignore[misc]
    refused = await node.mig_shares.whole(node.uuids[:1])
    assert isinstance(refused, Refusal)
    assert "can be turned off only by a reset (In use by another client): run `nvidia-smi" in refused.reason
    end(node, "b")
    await node.end()
    node.start()  # which knows no more than the driver
    await node.step()
    await node.mig_shares.step()
    await node.step()
    assert offered(node) == [Isolation.MIG]
    node.mig.mig_mode, node.mig.set_mig_mode = mig_mode, set_mode  # type: ignore[method-assign]
    set_mode(node.uuids[0], enabled=False)
    await node.mig_shares.step()
    await node.step()
    assert offered(node) == [Isolation.ARBITER, Isolation.MIG], "the reset came"


async def devices_of_living_pods_outlive_the_gpunode_and_the_configuration(node: Node) -> None:
    await ready(node)
    device = place(node, "a", "1g.5gb")
    await given(node, device)
    annotations = {contract.GPU_UUIDS: node.uuids[0], contract.MIG_DEVICE: str(device)}
    node.cluster.pods = [{"metadata": {"annotations": annotations}, "status": {"phase": "Running"}}]
    node.cluster.entries["on-demand"] = CONFIGS["fractional"]
    await node.step()
    (gpu, *_) = node.gpus_with_modes.gpus
    assert gpu.isolations == (Isolation.ARBITER,)
    assert mig_shares.read_device(gpu, str(device)) == device, "so that the share can be restored"
    node.cluster.node = dataclasses.replace(known(node), allocations=())
    for _ in range(3):
        after_idle(node)
        await node.mig_shares.step()
    assert there(node) == ["on", "1g.5gb@6"]
    assert not [note for note in node.cluster.told if "cannot be partitioned" in note]
    mig_devices.TRIES = 2  # type: ignore[misc]
    refused = await node.mig_shares.whole(node.uuids[:1])
    assert isinstance(refused, Refusal)
    assert refused.reason.endswith("the MIG device of a running pod that the GPUNode does not show is on it")
    node.cluster.pods[0] = {"metadata": {"annotations": annotations}, "status": {"phase": "Succeeded"}}
    assert await node.mig_shares.whole(node.uuids[:1]) is None
    assert there(node) == ["off"]


async def driver_that_hangs_delays_no_start_beyond_its_time(node: Node) -> None:
    await ready(node)
    device = place(node, "a", "1g.5gb")
    waits, answer = threading.Event(), node.mig.set_mig_mode

    def hang(uuid: str, *, enabled: bool) -> str:
        waits.wait()
        return answer(uuid, enabled=enabled)

    node.mig.set_mig_mode = hang  # type: ignore[method-assign]
    mig_devices.READY_SECONDS = 0.1  # type: ignore[misc]
    try:
        refused = await asyncio.wait_for(node.mig_shares.device(node.uuids[0], device), 60)
    finally:
        waits.set()
        mig_devices.READY_SECONDS = 20.0  # type: ignore[misc]
        node.mig.set_mig_mode = answer  # type: ignore[method-assign]
    assert isinstance(refused, Refusal)
    assert await given(node, device)


async def gpu_becomes_whole_before_it_changes_its_mode(node: Node) -> None:
    await ready(node)
    await given(node, place(node, "a", "1g.5gb"))
    await node.reach("exclusive")
    assert node.modes[0] == "fractional…"
    assert there(node) == ["on", "1g.5gb@6"]
    end(node, "a")
    await node.mig_shares.step()
    after_idle(node)
    await node.step()
    assert node.modes == ["exclusive"] * 4, (node.modes, node.pending)
    assert there(node) == ["off"]
    await node.reach("mig")
    assert node.facts() == node.used_as("mig")


STORIES: Final = modes_node.stories(globals())
for _helper in ("ready", "given"):
    del STORIES[_helper]

if __name__ == "__main__":
    modes_node.tell(STORIES)
