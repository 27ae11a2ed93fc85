"""The devices that the kubelet counts."""

from __future__ import annotations

import dataclasses

import pytest

from deviceplugin.state import advertisement
from gpushare import contract
from gpushare.gpunode import Gpu, Mode
from tests import builders

PERCENT, IDLE = contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE


def percents(*gpus: Gpu) -> tuple[advertisement.AdvertisedDevice, ...]:
    return advertisement.of_shares(gpus)[PERCENT]


@pytest.mark.parametrize(
    ("resource", "per_gpu"),
    [(PERCENT, 100), (IDLE, contract.IDLE_SHARES_PER_GPU)],
)
def test_a_gpu_is_advertised_as_one_device_per_unit(resource: str, per_gpu: int) -> None:
    devices = advertisement.of_shares(builders.node(gpus=4).gpus)[resource]
    assert len(devices) == len({device.id for device in devices}) == 4 * per_gpu
    assert all(device.healthy for device in devices)


def test_ids_contain_the_resource() -> None:
    devices = advertisement.of_shares(builders.node(gpus=1).gpus)
    assert devices[PERCENT][0].id == "gpu-percent-0"
    assert devices[IDLE][-1].id == "gpu-idle-63"


def test_counters_have_no_numa_node() -> None:
    assert {device.numa_node for device in percents(dataclasses.replace(builders.gpu(), numa_node=1))} == {None}


def test_an_unhealthy_gpu_makes_as_many_counters_unhealthy() -> None:
    well = builders.node(gpus=3).gpus
    devices = percents(dataclasses.replace(well[1], healthy=False), well[0], well[2])
    assert [device.healthy for device in devices] == [True] * 200 + [False] * 100


def test_counters_in_use_are_healthy_and_the_sum_is_unchanged() -> None:
    well = builders.node(gpus=2).gpus
    held = {"gpu-percent-199", "gpu-percent-3"}
    devices = advertisement.of_shares((dataclasses.replace(well[0], healthy=False), well[1]), in_use={PERCENT: held})[
        PERCENT
    ]
    healthy = {device.id for device in devices if device.healthy}
    assert (len(devices), len(healthy)) == (200, 100)
    assert held <= healthy
    assert "gpu-percent-98" in healthy


def test_more_counters_in_use_than_units_all_stay_healthy() -> None:
    held = [f"gpu-percent-{number}" for number in range(150)]
    devices = advertisement.of_shares(builders.node(gpus=1).gpus, in_use={PERCENT: held})[PERCENT]
    assert [device.id for device in devices if device.healthy] == held


def test_a_foreign_id_in_use_replaces_a_free_counter() -> None:
    held = ["GPU-6f127b1c::17", "GPU-6f127b1c::18"]
    devices = advertisement.of_shares(builders.node(gpus=1).gpus, in_use={PERCENT: held})[PERCENT]
    assert [device.id for device in devices] == [*(f"gpu-percent-{number}" for number in range(98)), *held]
    assert all(device.healthy for device in devices)


def test_a_node_that_can_give_more_than_its_gpus_advertises_more() -> None:
    devices = advertisement.of_shares(builders.node(gpus=1).gpus, usable={PERCENT: 130, IDLE: 64})[PERCENT]
    assert len(devices) == sum(device.healthy for device in devices) == 130


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.FRACTIONAL])
def test_only_fractional_gpus_take_shares(mode: Mode) -> None:
    assert len(percents(builders.gpu(0, mode=mode), builders.gpu(1))) == 100


def test_a_node_without_gpus_has_no_devices() -> None:
    assert advertisement.of_shares([]) == {PERCENT: (), IDLE: ()}


def test_a_closed_gpu_offers_only_devices_in_use() -> None:
    devices = [advertisement.AdvertisedDevice(f"GPU-{gpu}::{number}", True) for gpu in "ab" for number in range(2)]
    result = advertisement.closed(devices, gpus={"GPU-a"}, in_use={"GPU-a::1"})
    assert [device.healthy for device in result] == [False, True, True, True]
    ill = [dataclasses.replace(device, healthy=False) for device in devices]
    assert list(advertisement.closed(ill, gpus={"GPU-a"}, in_use={"GPU-a::1"})) == ill


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (PERCENT, "gpushare-gpu-percent.sock"),
        ("nvidia.com/gpu", "gpushare-nvidia.com-gpu.sock"),
        ("nvidia.com/gpu.shared", "gpushare-nvidia.com-gpu.shared.sock"),
        ("nvidia.com/mig-1g.10gb.me", "gpushare-nvidia.com-mig-1g.10gb.me.sock"),
    ],
)
def test_each_resource_has_its_own_socket(resource: str, name: str) -> None:
    assert advertisement.socket_name(resource) == name
