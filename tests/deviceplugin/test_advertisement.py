"""GPUs as the kubelet counts them."""

from __future__ import annotations

import dataclasses

import pytest

from deviceplugin import advertisement
from gpushare import contract
from gpushare.gpu import Mode
from tests import builders

PERCENT, IDLE = advertisement.RESOURCES


@pytest.mark.parametrize(
    ("resource", "per_gpu", "socket_name"),
    [(PERCENT, 100, "gpushare-gpu-percent.sock"), (IDLE, 64, "gpushare-gpu-idle.sock")],
)
def test_a_gpu_is_as_many_devices_as_the_resource_has_units(
    resource: advertisement.Resource, per_gpu: int, socket_name: str
) -> None:
    found = advertisement.devices(builders.node(gpus=4).gpus, resource)
    assert len(found) == len({device.id for device in found}) == 4 * per_gpu
    assert all(device.healthy for device in found)
    assert resource.socket_name == socket_name


def test_an_id_names_its_gpu_and_is_short_enough_for_the_kubelet() -> None:
    card = dataclasses.replace(builders.gpu(), uuid="GPU-6f127b1c-5d35-4a4c-9f2e-0123456789ab")
    found = advertisement.devices([card], PERCENT)
    assert found[0].id == "GPU-6f127b1c-5d35-4a4c-9f2e-0123456789ab::0"
    assert max(len(device.id) for device in found) <= 63


def test_a_gpu_takes_only_its_own_devices_with_it_when_it_is_unhealthy() -> None:
    well = builders.node(gpus=3).gpus
    found = advertisement.devices([dataclasses.replace(well[1], healthy=False), well[0], well[2]], PERCENT)
    assert {device.id.split("::")[0] for device in found if not device.healthy} == {well[1].uuid}
    assert sum(device.healthy for device in found) == 200


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.FRACTIONAL])
def test_only_fractional_gpus_take_shares(mode: Mode) -> None:
    cards = [builders.gpu(0, mode=mode), builders.gpu(1)]
    assert {device.id.split("::")[0] for device in advertisement.devices(cards, PERCENT)} == {cards[1].uuid}


def test_a_node_without_gpus_has_no_devices() -> None:
    assert advertisement.devices([], PERCENT) == ()


def test_the_resources_are_those_the_webhook_writes() -> None:
    assert [resource.name for resource in advertisement.RESOURCES] == [
        contract.RESOURCE_PERCENT,
        contract.RESOURCE_IDLE,
    ]
