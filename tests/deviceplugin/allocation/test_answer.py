"""Refused Allocate requests, and the contents of accepted ones."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation import answer, preference
from deviceplugin.kubelet_api import deviceplugin_v1beta1_pb2 as messages
from gpushare.config.node_settings import NodeSettings
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Offered

GPU = "nvidia.com/gpu"
STRATEGIES = st.lists(
    st.sampled_from(["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]), unique=True, min_size=1
).map(tuple)


def replica(gpu: str, number: int, *, alone: bool = False, index: str = "0") -> Offered:
    return Offered(f"{gpu}::{number}", gpu, gpu, index, Mode.TIME_SLICING, 4, alone)


def whole(gpu: str, index: str = "0") -> Offered:
    return Offered(gpu, gpu, gpu, index, Mode.EXCLUSIVE)


def mounts(response: messages.ContainerAllocateResponse) -> list[tuple[str, str]]:
    return [(mount.container_path, mount.host_path) for mount in response.mounts]


def test_refuses_an_unknown_id_by_name() -> None:
    with pytest.raises(preference.AllocationError, match=r'"nvidia\.com/gpu": invalid request: unknown device: GPU-z'):
        preference.check_request(GPU, ["GPU-z"], {"GPU-a": whole("GPU-a")})


@pytest.mark.parametrize("alone", [True, False])
def test_refuses_two_shares_if_configured(alone: bool) -> None:
    devices = {device.id: device for device in (replica("GPU-a", 0, alone=alone), replica("GPU-a", 1, alone=alone))}
    preference.check_request(GPU, ["GPU-a::0"], devices)
    if not alone:
        preference.check_request(GPU, list(devices), devices)
        return
    with pytest.raises(preference.AllocationError, match="shared resources is 1; found 2"):
        preference.check_request(GPU, list(devices), devices)


def test_accepts_any_number_of_whole_gpus() -> None:
    devices = {device.id: device for device in (whole("GPU-a"), whole("GPU-b", "1"))}
    preference.check_request(GPU, list(devices), devices)


def test_lists_a_gpu_once_in_the_requested_order() -> None:
    devices = [replica("GPU-b", 1, index="1"), replica("GPU-a", 0), replica("GPU-b", 0, index="1")]
    response = answer.container_response(GPU, devices, NodeSettings(), answer_id="x")
    assert response == messages.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a"})
    by_index = answer.container_response(GPU, devices, NodeSettings(device_id_strategy="index"), answer_id="x")
    assert by_index.envs == {"NVIDIA_VISIBLE_DEVICES": "1,0"}


def test_volume_mounts_replace_the_list_in_the_environment() -> None:
    settings = NodeSettings(device_list_strategies=("envvar", "volume-mounts"), imex_channels=(0,))
    response = answer.container_response(GPU, [whole("GPU-a"), whole("GPU-b", "1")], settings, answer_id="x")
    assert response.envs == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices", "NVIDIA_IMEX_CHANNELS": "0"}
    assert mounts(response) == [
        (f"/var/run/nvidia-container-devices/{name}", "/dev/null") for name in ("GPU-a", "GPU-b", "imex/0")
    ]


def test_cdi_names_every_enabled_device() -> None:
    settings = NodeSettings(
        device_list_strategies=("cdi-annotations", "cdi-cri"),
        cdi_annotation_prefix="example.com/",
        gds=True,
        gdrcopy=True,
        imex_channels=(0,),
    )
    response = answer.container_response(GPU, [whole("GPU-a")], settings, answer_id="x")
    names = tuple(
        f"k8s.device-plugin.nvidia.com/{name}" for name in ("gpu=GPU-a", "imex-channel=0", "gdrcopy=all", "gds=all")
    )
    assert tuple(device.name for device in response.cdi_devices) == names
    assert response.annotations == {"example.com/nvidia-device-plugin_x": ",".join(names)}
    assert response.envs == {"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled"}


def test_lists_each_existing_device_node_once() -> None:
    nodes = answer.DevicePaths(
        {"GPU-a": ("/dev/nvidia0", "/dev/caps/1"), "GPU-b": ("/dev/nvidia1", "/dev/caps/1")}, ("/dev/nvidia-uvm",)
    )
    settings = NodeSettings(pass_device_specs=True, dev_root="/run/driver/")
    response = answer.container_response(
        GPU, [whole("GPU-a"), whole("GPU-b", "1")], settings, answer_id="x", nodes=nodes
    )
    assert [device.container_path for device in response.devices] == [
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
        "/dev/caps/1",
        "/dev/nvidia1",
    ]
    assert response.devices[0].host_path == "/run/driver/dev/nvidia-uvm"


def test_mps_mounts_pipe_and_shared_memory_under_every_strategy() -> None:
    for strategies in (("envvar",), ("cdi-cri",)):
        response = answer.container_response(
            "nvidia.com/gpu.mps",
            [dataclasses.replace(replica("GPU-a", 0), mode=Mode.MPS)],
            NodeSettings(device_list_strategies=strategies),
            answer_id="x",
            mps=answer.MpsPaths(pipe="/host/pipe", shm="/host/shm"),
        )
        assert response.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu.mps/pipe"
        assert mounts(response) == [
            ("/mps/nvidia.com/gpu.mps/pipe", "/host/pipe"),
            ("/dev/shm", "/host/shm"),
        ]


@pytest.mark.slow
@given(STRATEGIES, st.booleans(), st.booleans())
def test_each_strategy_presents_the_gpu_only_in_its_own_form(
    strategies: tuple[str, ...], specs: bool, by_index: bool
) -> None:
    settings = NodeSettings(
        device_list_strategies=strategies,
        pass_device_specs=specs,
        device_id_strategy="index" if by_index else "uuid",
    )
    nodes = answer.DevicePaths({"GPU-a": ("/dev/nvidia0",)})
    response = answer.container_response(GPU, [whole("GPU-a", "7")], settings, answer_id="x", nodes=nodes)
    shown = "7" if by_index else "GPU-a"
    visible = response.envs.get("NVIDIA_VISIBLE_DEVICES")
    mounted = [mount.container_path.rpartition("/")[2] for mount in response.mounts]
    assert mounted == ([shown] if "volume-mounts" in strategies else [])
    if "volume-mounts" not in strategies:
        assert visible == (shown if "envvar" in strategies else None)
    assert len(response.cdi_devices) == ("cdi-cri" in strategies)
    assert len(response.annotations) == ("cdi-annotations" in strategies)
    assert bool(response.devices) == (specs and bool({"envvar", "volume-mounts"} & set(strategies)))
