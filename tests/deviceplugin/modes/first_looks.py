"""GPUs that the agent cannot read completely, each case on its own node. Run as a program: DIRECTORY [STORY …]."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pynvml

from deviceplugin.hardware import gpu_health, nvml, nvml_call, observation
from deviceplugin.state.node_state import Unreadable
from tests.deviceplugin import simulated
from tests.deviceplugin.modes import modes_node
from tests.deviceplugin.modes.modes_node import CONFIGS, GPU, Node

NVRM: Final = "see the kernel's log for NVRM"


def _without_memory(*indices: int) -> None:
    """Make the driver answer as on a DGX Spark, whose GPU has no separate memory."""
    read = pynvml.nvmlDeviceGetMemoryInfo

    def memory(handle: Any, *version: Any) -> Any:
        if pynvml.nvmlDeviceGetIndex(handle) in indices:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return read(handle, *version)

    pynvml.nvmlDeviceGetMemoryInfo = memory


async def a_gpu_without_memory_information_takes_no_shares(node: Node) -> None:
    _without_memory(1)
    await node.reach("fractional")
    assert node.modes == ["fractional", "fractional…", "fractional", "fractional"], node.modes
    assert "the driver does not report how much memory it has, so it cannot be shared by annotation" in node.pending
    assert len(node.advertised.value["gpushare.io/gpu-percent"]) == 300
    (event,) = [line for line in node.cluster.told if line.startswith("GpuSetAside")]
    assert "GPU 1" in event, event
    await node.reach("time-slicing")
    assert node.modes == ["time-slicing"] * 4, node.modes
    assert not node.pending, node.pending


async def gpus_without_memory_information_are_offered_in_all_other_modes(node: Node) -> None:
    _without_memory(0, 1, 2, 3)
    for mode, devices in (("exclusive", 4), ("time-slicing", 16), ("mps", 8)):
        await node.reach(mode)
        assert node.modes == [mode] * 4, node.modes
        assert [device.healthy for device in node.advertised.value[GPU]] == [True] * devices, mode
        assert not node.pending, node.pending
    limits = (node.daemons.files(node.uuids[0]).pipe / "limits").read_text()
    assert "default_active_thread_percentage" in limits, limits
    assert "pinned" not in limits, limits
    await node.reach("mig")
    assert node.facts() == node.used_as("mig")
    assert [device.healthy for device in node.advertised.value["nvidia.com/mig-3g.20gb"]] == [True] * 8
    assert not node.pending, node.pending
    parts = node.mig.mig_devices(node.uuids[0])
    assert [part.memory_bytes >> 30 for part in parts] == [19, 19], "the driver says how large these are"
    await node.reach("exclusive")
    assert len(node.advertised.value[GPU]) == 4, "they are cut, and whole as NVIDIA's strategy none has them"


async def a_gpu_lost_before_the_first_observation_is_reported_and_found_again(node: Node) -> None:
    """Like NVML, this driver finds a lost GPU only after it is initialised again."""
    begun: list[int] = []
    snapshot, reinitialize = node.opened.snapshot, node.opened.reinitialize

    def without_it() -> nvml.NvmlSnapshot:
        seen = snapshot()
        return nvml.NvmlSnapshot(tuple(gpu for gpu in seen.gpus if gpu.index != 1), (Unreadable(1, "GPU is lost"),))

    def begin() -> None:
        begun.append(1)
        reinitialize()
        node.opened.snapshot = snapshot  # type: ignore[method-assign]

    node.opened.snapshot, node.opened.reinitialize = without_it, begin  # type: ignore[method-assign]
    await node.reach("exclusive")
    assert node.unread.value == (Unreadable(1, "GPU is lost"),)
    assert node.modes == ["exclusive"] * 3, node.modes
    assert not begun, "at each look it would cost the events in between"
    begin_anew_seconds = observation.REINITIALIZE_SECONDS
    observation.REINITIALIZE_SECONDS = 0.0  # type: ignore[misc]
    await node.step(times=1)
    observation.REINITIALIZE_SECONDS = begin_anew_seconds  # type: ignore[misc]
    await node.step(times=2)
    assert len(begun) == 1, begun
    assert not node.unread.value
    assert node.modes == ["exclusive"] * 4, node.modes


async def a_driver_that_fails_to_count_gpus_at_first_is_reported(node: Node) -> None:
    await simulated.change("fail", node.gpus, "0", "silent")
    await node.reach("exclusive")
    (unread,) = node.unread.value
    assert str(unread) == "the driver does not answer: nvmlDeviceGetCount() failed: Unknown Error", unread
    await simulated.change("heal", node.gpus, "0")
    await node.step()
    assert not node.unread.value
    assert node.modes == ["exclusive"] * 4, node.modes


async def a_driver_that_lists_none_of_the_kernels_gpus_is_reported(node: Node) -> None:
    """This happens when initialising the GPUs failed. If the kernel lists no GPU either, the node has none."""
    node.opened.snapshot = lambda: nvml.NvmlSnapshot(())  # type: ignore[method-assign]
    await node.reach("exclusive")
    assert not node.unread.value
    (node.directory / "driver" / "nvidia" / "gpus" / "0000:07:00.0").mkdir(parents=True)
    await node.step()
    (unread,) = node.unread.value
    assert str(unread).startswith("the driver does not answer: it lists none of the kernel's GPUs (1): see"), unread


async def a_gpu_that_only_the_kernel_lists_is_reported(node: Node) -> None:
    """This happens when initialising the GPU failed. A node in a container only has its GPUs' device nodes."""
    snapshot = node.opened.snapshot
    known = [nvml_call.kernel_address(gpu.pci_bus_id) for gpu in snapshot().gpus]
    information = {bus_id: f"Device Minor: \t {number}\n" for number, bus_id in enumerate(known)}
    information |= {"0000:f0:00.0": "Device Minor: \t 17\n", "0000:f1:00.0": "GPU Excluded:\t Yes\n"}
    for bus_id, text in information.items():
        directory = node.directory / "driver" / "nvidia" / "gpus" / bus_id
        directory.mkdir(parents=True)
        (directory / "information").write_text(text)
    (node.directory / "dev").mkdir()
    for number in range(4):
        (node.directory / "dev" / f"nvidia{number}").touch()
    await node.reach("exclusive")
    assert not node.unread.value, node.unread.value
    node.opened.snapshot = lambda: nvml.NvmlSnapshot(snapshot().gpus[:3])  # type: ignore[method-assign]
    await node.step()
    (unread,) = node.unread.value
    assert str(unread) == f"GPU {known[3]} does not answer: the kernel has it, but the driver does not list it: {NVRM}"
    assert node.modes == ["exclusive"] * 3, node.modes
    lost = nvml.NvmlSnapshot(snapshot().gpus[:2], (Unreadable(2, "GPU is lost"),))
    node.opened.snapshot = lambda: lost  # type: ignore[method-assign]
    node.opened.lists = lambda bus_id: bus_id == known[2]  # type: ignore[method-assign]
    await node.step()
    assert node.gpus_with_modes.gpus[2].health_reason == "it does not answer: GPU is lost"
    assert [gpu.bus_id for gpu in node.unread.value] == [known[3]]
    node.opened.snapshot = snapshot  # type: ignore[method-assign]
    await node.step()
    assert not node.unread.value
    assert node.modes == ["exclusive"] * 4, node.modes


async def a_gpu_that_needs_a_reset_is_unhealthy_until_it_is_reset(node: Node) -> None:
    """This holds for any XID, and also if the GPU failed before the agent started."""
    action, read = 1, pynvml.nvmlDeviceGetFieldValues

    def wanted(handle: Any, fields: list[int]) -> list[Any]:
        values = list(read(handle, fields))
        values[0].nvmlReturn = pynvml.NVML_SUCCESS
        values[0].value.uiVal = action if pynvml.nvmlDeviceGetIndex(handle) == 1 else 0
        return values

    pynvml.nvmlDeviceGetFieldValues = wanted
    await node.reach("exclusive")
    assert [gpu.health_reason for gpu in node.gpus_with_modes.gpus] == [
        "",
        "the driver says that it has to be reset",
        "",
        "",
    ]
    assert [device.healthy for device in node.advertised.value[GPU]] == [True, False, True, True]
    gpu_health.QUIET_SECONDS = 0.0  # type: ignore[misc]
    await node.observation.step()
    await simulated.change("fail", node.gpus, "1", "xid=94")
    async with asyncio.timeout(60):
        while "XID 94" not in node.seen.gpus[1].health_reason:
            await node.observation.step()
    await node.step()
    assert "XID 94" in node.gpus_with_modes.gpus[1].health_reason, "its time is over, but the driver wants a reset"
    action = 0
    await node.step()
    assert [gpu.health_reason for gpu in node.gpus_with_modes.gpus] == ["", "", "", ""]
    assert node.modes == ["exclusive"] * 4


async def a_node_without_a_usable_entry_offers_nothing_until_it_has_one(node: Node) -> None:
    node.cluster.entries["broken"] = CONFIGS["mps"].replace("replicas: 2", "replicas: 2, devices: [7]")
    for label, sentence in (
        ("exclusiv", "specified config exclusiv does not exist: the ConfigMap has broken, exclusive"),
        ("broken", "configuration broken: "),
        (None, "no config was set, no default was provided, and all fallbacks failed: label the node with one of"),
    ):
        node.cluster.label = label
        await node.end()
        node.start()
        await node.step()
        assert not any(gpu.takes_shares for gpu in node.gpus_with_modes.gpus)
        assert not node.advertised.value
        assert not node.checkpoint.exists()
        (valid,) = (condition for condition in node.config_status.value.conditions if condition.type == "ConfigValid")
        assert (valid.status, valid.reason) == ("False", "NothingInForce")
        assert valid.message.startswith(sentence), valid.message
        assert valid.message.endswith("; nothing is in force, and this node offers no GPU until that is fixed")
        assert node.config_status.value.config == ""
        assert sum(line.startswith(f"ConfigInvalid {sentence}") for line in node.cluster.told) == 1, node.cluster.told
    await node.reach("exclusive")
    assert node.modes == ["exclusive"] * 4, node.modes
    node.cluster.label = "exclusiv"
    await node.step()
    assert node.modes == ["exclusive"] * 4, "what was in force stays"
    (valid,) = (condition for condition in node.config_status.value.conditions if condition.type == "ConfigValid")
    assert valid.message.endswith("; exclusive stays in force"), valid.message


async def without_a_configmap_gpus_take_shares_even_if_the_first_entry_is_invalid(node: Node) -> None:
    node.cluster.entries = {}
    await node.step()
    assert node.modes == ["fractional"] * 4, node.modes
    (valid,) = (condition for condition in node.config_status.value.conditions if condition.type == "ConfigValid")
    assert valid.message == "no entry of the ConfigMap applies, so every GPU takes shares by annotation", valid.message
    node.cluster.entries = {"one": "version: v1\nsharing: {mps: {resources: []}}\n"}
    await node.step()
    assert node.modes == ["fractional"] * 4, node.modes
    (valid,) = (condition for condition in node.config_status.value.conditions if condition.type == "ConfigValid")
    assert valid.reason == "Refused"
    assert valid.message.endswith("; every GPU continues to take shares by annotation, as without a ConfigMap"), valid


async def a_configuration_that_names_an_unreadable_gpu_applies_to_the_others(node: Node) -> None:
    await simulated.change("fail", node.gpus, "1", "lost")
    resources = f"resources: [{{name: {GPU}, replicas: 4, devices: [0, 1]}}]"
    node.cluster.entries["listed"] = f"version: v1\nsharing: {{timeSlicing: {{{resources}}}}}\n"
    await node.reach("listed")
    assert node.modes == ["time-slicing", "exclusive", "exclusive"], node.modes
    assert not node.pending, node.pending
    await simulated.change("heal", node.gpus, "1")
    await node.step()
    assert node.modes == ["time-slicing", "time-slicing", "exclusive", "exclusive"], node.modes


STORIES: Final = modes_node.stories(globals())

if __name__ == "__main__":
    modes_node.tell(STORIES)
