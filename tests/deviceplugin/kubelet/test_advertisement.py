"""GPUs as the kubelet counts them."""

from __future__ import annotations

import dataclasses

import pytest

from deviceplugin.kubelet import advertisement
from gpushare import contract
from gpushare.gpu import Gpu, Mode
from tests import builders

PERCENT, IDLE = contract.RESOURCE_PERCENT, contract.RESOURCE_IDLE


def percents(*cards: Gpu) -> tuple[advertisement.Device, ...]:
    return advertisement.of_shares(cards)[PERCENT]


@pytest.mark.parametrize(
    ("resource", "per_gpu"),
    [(PERCENT, 100), (IDLE, contract.IDLE_SHARES_PER_GPU)],
)
def test_a_gpu_is_as_many_devices_as_the_resource_has_units(resource: str, per_gpu: int) -> None:
    found = advertisement.of_shares(builders.node(gpus=4).gpus)[resource]
    assert len(found) == len({device.id for device in found}) == 4 * per_gpu
    assert all(device.healthy for device in found)


def test_an_id_names_its_gpu_and_is_short_enough_for_the_kubelet() -> None:
    found = percents(dataclasses.replace(builders.gpu(), uuid="GPU-6f127b1c-5d35-4a4c-9f2e-0123456789ab"))
    assert found[0].id == "GPU-6f127b1c-5d35-4a4c-9f2e-0123456789ab::0"
    assert max(len(device.id) for device in found) <= 63


def test_ids_are_counters_and_are_near_no_cpu() -> None:
    assert {device.numa_node for device in percents(dataclasses.replace(builders.gpu(), numa_node=1))} == {None}


def test_a_gpu_takes_only_its_own_devices_with_it_when_it_is_unhealthy() -> None:
    well = builders.node(gpus=3).gpus
    found = percents(dataclasses.replace(well[1], healthy=False), well[0], well[2])
    assert {device.id.split("::")[0] for device in found if not device.healthy} == {well[1].uuid}
    assert sum(device.healthy for device in found) == 200


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.FRACTIONAL])
def test_only_fractional_gpus_take_shares(mode: Mode) -> None:
    cards = [builders.gpu(0, mode=mode), builders.gpu(1)]
    assert {device.id.split("::")[0] for device in percents(*cards)} == {cards[1].uuid}


def test_a_node_without_gpus_has_no_devices() -> None:
    assert advertisement.of_shares([]) == {PERCENT: (), IDLE: ()}


def test_a_gpu_that_takes_nothing_new_offers_what_is_in_use() -> None:
    devices = [advertisement.Device(f"GPU-{card}::{number}", True) for card in "ab" for number in range(2)]
    found = advertisement.closed(devices, cards={"GPU-a"}, in_use={"GPU-a::1"})
    assert [device.healthy for device in found] == [False, True, True, True]
    ill = [dataclasses.replace(device, healthy=False) for device in devices]
    assert list(advertisement.closed(ill, cards={"GPU-a"}, in_use={"GPU-a::1"})) == ill


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (PERCENT, "gpushare-gpu-percent.sock"),
        ("nvidia.com/gpu", "gpushare-nvidia.com-gpu.sock"),
        ("nvidia.com/gpu.shared", "gpushare-nvidia.com-gpu.shared.sock"),
        ("nvidia.com/mig-1g.10gb.me", "gpushare-nvidia.com-mig-1g.10gb.me.sock"),
    ],
)
def test_each_resource_has_a_socket_of_its_own(resource: str, name: str) -> None:
    assert advertisement.socket_name(resource) == name
