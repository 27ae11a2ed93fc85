"""The published view of modes that are in force or being changed."""

from __future__ import annotations

import dataclasses
from typing import Any

from deviceplugin.modes import transition
from gpushare import contract
from gpushare.allocation import Isolation
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Assignment
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice
from tests import builders

SEEN = builders.node(gpus=3).gpus
GPUS = [HardwareGpu(gpu.uuid, gpu.index, gpu.model) for gpu in SEEN]
ONE, TWO, THREE = (gpu.uuid for gpu in SEEN)
WHOLE = Assignment(Mode.EXCLUSIVE, "nvidia.com/gpu")
SLICED = Assignment(Mode.TIME_SLICING, "nvidia.com/gpu.shared", 2)
SHARED = Assignment(Mode.FRACTIONAL)


def advertised(in_force: dict[str, Assignment | None], **arguments: Any) -> dict[str, dict[str, bool]]:
    known = transition.gpus_with_modes(SEEN, in_force, {}, arguments.get("closed", frozenset()))
    options: dict[str, Any] = {"closed": frozenset(), "in_use": {}} | arguments
    resources = transition.advertised(known, GPUS, in_force, **options)
    return {name: {device.id: device.healthy for device in devices} for name, devices in resources.items()}


def test_a_changing_gpu_shows_its_present_and_its_next_mode() -> None:
    gpus = transition.gpus_with_modes(
        SEEN, {ONE: SHARED, TWO: None, THREE: WHOLE}, dict.fromkeys((ONE, TWO, THREE), WHOLE), {ONE}
    )
    assert [(gpu.mode, gpu.pending_mode) for gpu in gpus] == [
        (Mode.FRACTIONAL, Mode.EXCLUSIVE),
        (Mode.EXCLUSIVE, Mode.EXCLUSIVE),
        (Mode.EXCLUSIVE, None),
    ]


def test_a_gpu_shows_the_mig_devices_on_it() -> None:
    parts = tuple(HardwareMigDevice(f"MIG-{index}", index, kind) for index, kind in enumerate(("3g.40gb", "1g.10gb")))
    hardware = [dataclasses.replace(GPUS[0], mig_enabled=True, mig_devices=parts), *GPUS[1:]]
    gpus = transition.gpus_with_modes(SEEN, {}, {}, frozenset(), hardware)
    assert [gpu.mig_profiles for gpu in gpus] == [("3g.40gb", "1g.10gb"), (), ()]


def test_a_gpu_shows_its_sm_partitions_if_it_offers_mps() -> None:
    wanted = Assignment(Mode.FRACTIONAL, isolations=(Isolation.ARBITER, Isolation.MPS), sm_partitions=4)
    able = dataclasses.replace(GPUS[0], isolations=tuple(Isolation), sm_partitions=4, can_partition=True)
    gpus = transition.gpus_with_modes(
        SEEN, {}, {ONE: wanted, TWO: wanted, THREE: SHARED}, frozenset(), [able, *GPUS[1:]]
    )
    assert [(gpu.isolations, gpu.sm_partitions) for gpu in gpus] == [
        ((Isolation.ARBITER, Isolation.MPS), 4),
        ((Isolation.ARBITER,), 0),
        ((Isolation.ARBITER,), 0),
    ]
    assert transition.without_partitions([able, *GPUS[1:]], {ONE: wanted, TWO: wanted, THREE: SHARED}) == [
        f"GPU 1 ({TWO}) offers no isolation mps: smPartitions needs Ampere or later and a driver with CUDA 13.1"
    ]


def test_each_gpu_is_offered_in_its_mode_unless_it_is_being_set_up() -> None:
    devices = advertised({ONE: WHOLE, TWO: SLICED, THREE: None})
    assert devices == {
        "nvidia.com/gpu": {ONE: True},
        "nvidia.com/gpu.shared": {f"{TWO}::0": True, f"{TWO}::1": True},
    }


def test_a_node_without_fractional_gpus_has_no_counters() -> None:
    assert contract.RESOURCE_PERCENT not in advertised({ONE: WHOLE, TWO: WHOLE, THREE: WHOLE})
    assert len(advertised({ONE: WHOLE, TWO: SHARED, THREE: WHOLE})[contract.RESOURCE_PERCENT]) == 100


def test_a_closed_gpu_offers_only_devices_in_use() -> None:
    in_use = {"nvidia.com/gpu.shared": {f"{TWO}::1"}}
    devices = advertised({ONE: WHOLE, TWO: SLICED, THREE: WHOLE}, closed=frozenset({ONE, TWO}), in_use=in_use)
    assert devices["nvidia.com/gpu"] == {ONE: False, THREE: True}
    assert devices["nvidia.com/gpu.shared"] == {f"{TWO}::0": False, f"{TWO}::1": True}


def test_a_counter_in_use_outlives_its_gpu() -> None:
    held = {f"gpu-percent-{unit}" for unit in range(150, 200)}
    in_use = {contract.RESOURCE_PERCENT: held}
    before = advertised({ONE: SHARED, TWO: SHARED, THREE: WHOLE}, in_use=in_use)[contract.RESOURCE_PERCENT]
    after = advertised({ONE: WHOLE, TWO: SHARED, THREE: WHOLE}, in_use=in_use)[contract.RESOURCE_PERCENT]
    assert (len(before), len(after)) == (200, 100)
    assert all(after.get(identity) for identity in held)


def test_counters_of_a_changing_gpu_are_healthy_as_far_as_the_node_can_give() -> None:
    in_force: dict[str, Assignment | None] = {ONE: SHARED, TWO: WHOLE, THREE: WHOLE}
    usable = {contract.RESOURCE_PERCENT: 50, contract.RESOURCE_IDLE: 64}
    devices = advertised(in_force, closed=frozenset({ONE}), usable=usable)[contract.RESOURCE_PERCENT]
    assert (len(devices), sum(devices.values())) == (100, 50)


def test_a_device_is_healthy_if_its_gpu_and_its_mig_device_are() -> None:
    ill = (dataclasses.replace(SEEN[0], healthy=False), *SEEN[1:])
    in_force: dict[str, Assignment | None] = {ONE: SLICED, TWO: WHOLE, THREE: WHOLE}
    known = transition.gpus_with_modes(ill, in_force, {}, frozenset())
    devices = transition.advertised(known, GPUS, in_force, closed=frozenset(), in_use={}, unhealthy={TWO})
    assert [device.healthy for device in devices["nvidia.com/gpu.shared"]] == [False, False]
    assert [device.healthy for device in devices["nvidia.com/gpu"]] == [False, True]
