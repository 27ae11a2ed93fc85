"""From a configuration to the mode of each GPU of a node and the devices offered to the kubelet."""

from __future__ import annotations

import dataclasses
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import errors
from gpushare.allocation import Isolation
from gpushare.config import config_file, model
from gpushare.config.model import Devices
from gpushare.gpunode import Mode
from gpushare.mig import catalogue, parted
from gpushare.modes import device_resources, mode_plan
from gpushare.modes.assignment import Assignment, contradiction, offer
from gpushare.modes.hardware_gpu import ComputeMode, HardwareGpu, HardwareMigDevice, WholeDevice

GIB = 1024**3


def gpus(count: int = 4) -> list[HardwareGpu]:
    return [HardwareGpu(f"GPU-{index}", index, "NVIDIA A100-SXM4-80GB", mig_capable=True) for index in range(count)]


def with_mig(gpu: HardwareGpu, *profiles: str) -> HardwareGpu:
    devices = tuple(
        HardwareMigDevice(f"MIG-{gpu.index}-{number}", number, kind) for number, kind in enumerate(profiles)
    )
    return dataclasses.replace(gpu, mig_enabled=True, mig_devices=devices)


def planned(text: str, node: list[HardwareGpu], *, mig_strategy: str = "mixed") -> mode_plan.ModePlan:
    return mode_plan.plan(config_file.read(textwrap.dedent(text)), node, mig_strategy=mig_strategy)


def offered(plan: mode_plan.ModePlan, node: list[HardwareGpu]) -> dict[str, list[str]]:
    return {name: [device.id for device in devices] for name, devices in offer(node, plan.assignments).items()}


EVERY_MODE = """
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources: [{name: gpu, replicas: 4, devices: [1], rename: gpu.sliced, interval: long}]
  mps:
    resources: [{name: gpu, replicas: 2, devices: [2], rename: gpu.mps}]
  fractional:
    resources: [{name: gpu, devices: [3]}]
mig:
- {devices: [4], mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}}
"""


def test_each_gpu_of_a_node_can_have_a_different_mode() -> None:
    node = gpus(5)
    plan = planned(EVERY_MODE, node)
    assert [str(plan.assignments[gpu.uuid]) for gpu in node] == [
        "exclusive, nvidia.com/gpu",
        "time-slicing, 4 × nvidia.com/gpu.sliced, long time slices",
        "mps, 2 × nvidia.com/gpu.mps",
        "fractional",
        "mig, 2 × 1g.10gb + 1 × 3g.40gb",
    ]
    assert plan.warnings == ()
    assert [assignment.alone for assignment in plan.assignments.values()] == [False, True, True, False, False]
    node[4] = with_mig(node[4], "3g.40gb", "1g.10gb", "1g.10gb")
    assert offered(plan, node) == {
        "nvidia.com/gpu": ["GPU-0"],
        "nvidia.com/gpu.sliced": ["GPU-1::0", "GPU-1::1", "GPU-1::2", "GPU-1::3"],
        "nvidia.com/gpu.mps": ["GPU-2::0", "GPU-2::1"],
        "nvidia.com/mig-3g.40gb": ["MIG-4-0"],
        "nvidia.com/mig-1g.10gb": ["MIG-4-1", "MIG-4-2"],
    }


def test_the_plan_does_not_change_once_the_gpu_is_partitioned() -> None:
    node = gpus(5)
    before = planned(EVERY_MODE, node)
    node[4] = with_mig(node[4], "1g.10gb", "3g.40gb", "1g.10gb")
    assert planned(EVERY_MODE, node).assignments == before.assignments


def test_an_entry_with_a_named_gpu_precedes_a_count_and_all() -> None:
    plan = planned(
        """
        sharing:
          timeSlicing: {resources: [{name: gpu, replicas: 2}]}
          mps: {resources: [{name: gpu, replicas: 3, devices: 1}]}
          fractional: {resources: [{name: gpu, devices: ["0"]}]}
        """,
        gpus(),
    )
    modes = [assignment.mode for assignment in plan.assignments.values()]
    assert modes == [Mode.FRACTIONAL, Mode.MPS, Mode.TIME_SLICING, Mode.TIME_SLICING]


def test_mps_precedes_time_slicing_when_both_claim_all_gpus() -> None:
    plan = planned(
        """
        sharing:
          timeSlicing: {resources: [{name: gpu, replicas: 2}]}
          mps: {resources: [{name: gpu, replicas: 3}]}
        """,
        gpus(1),
    )
    assert plan.assignments["GPU-0"].mode is Mode.MPS
    assert plan.warnings == (
        "sharing.timeSlicing.resources[0] has no effect: other entries claim every device of nvidia.com/gpu",
    )


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        ("{name: gpus, replicas: 2}", "this node has no nvidia.com/gpus; it has nvidia.com/gpu"),
        ("{name: gpu, replicas: 2, devices: []}", "its list of devices is empty"),
    ],
)
def test_entry_that_shares_nothing_is_a_warning_with_the_reason(entry: str, part: str) -> None:
    plan = planned(f"sharing: {{timeSlicing: {{resources: [{entry}]}}}}", gpus(1))
    assert plan.assignments["GPU-0"].mode is Mode.EXCLUSIVE
    assert plan.warnings == (f"sharing.timeSlicing.resources[0] has no effect: {part}",)


def test_more_devices_than_the_kubelet_accepts_are_rejected() -> None:
    text = "sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {}, devices: {}}}]}}}}"
    assert len(offered(planned(text.format(16384, "all"), gpus(3)), gpus(3))["nvidia.com/gpu"]) == 49_152
    with pytest.raises(errors.ConfigError) as caught:
        planned(text.format(10_000, "all"), gpus(8))
    assert str(caught.value) == (
        "sharing.timeSlicing.resources[0].replicas 10000: the node would have 80000 devices, but a kubelet accepts at most 50000: write fewer replicas"
    )
    for devices in ("8", "[0, 1, 2, 3, 4, 5, 6, 7]"):
        with pytest.raises(errors.ConfigError, match="number of replicas must be <= 6250 of 8 devices"):
            config_file.read(text.format(10_000, devices))
    with pytest.raises(errors.ConfigError, match="number of replicas must be <= 50000: a kubelet accepts"):
        config_file.read(text.format(50_001, "all"))


H100 = parted.parse_device_id("0x233010DE:0x16C110DE")


@pytest.mark.parametrize(
    ("entries", "warnings"),
    [
        ("{devices: all, mig-enabled: false}", []),
        ("{devices: [0, 4, 5], mig-enabled: false}", ["mig[0] names GPU 4, 5, which this node lacks: it has 0, 1"]),
        ("{devices: [], mig-enabled: false}", ["mig[0] has no effect: its list of devices is empty"]),
        (
            "{devices: all, mig-enabled: false}, {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}, "
            "{devices: [0, 1], mig-enabled: false}",
            [
                "mig[0] has no effect: later entries apply to the same GPUs",
                "mig[1] has no effect: later entries apply to the same GPUs",
            ],
        ),
        (
            '{device-filter: ["0x20B510DE"], devices: all, mig-enabled: false}',
            ["mig[0] has no effect: its device-filter matches no GPU of this node"],
        ),
        (  # the second is for other nodes
            '{device-filter: "0x233010DE", devices: all, mig-enabled: false}, '
            '{device-filter: "0x20B510DE", devices: [7], mig-enabled: false}',
            [],
        ),
        (
            f"{{devices: {list(range(100))}, mig-enabled: false}}",
            ["mig[0] names GPU 2, 3, 4, 5, 6, 7, 8, 9 and 90 more, which this node lacks: it has 0, 1"],
        ),
    ],
)
def test_a_mig_entry_that_changes_nothing_is_a_warning_with_the_reason(entries: str, warnings: list[str]) -> None:
    node = [dataclasses.replace(gpu, hardware=H100) for gpu in gpus(2)]
    assert list(planned(f"mig: [{entries}]", node).warnings) == warnings


def test_mig_entries_for_gpus_without_mig_are_warnings() -> None:
    node = [dataclasses.replace(gpu, mig_capable=False) for gpu in gpus(1)]
    text = "mig: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]"
    assert planned(text, node).warnings == ("mig[0] has no effect: none of its GPUs supports MIG",)
    assert planned("mig: [{devices: all, mig-enabled: false}]", node).warnings == ()
    text = 'mig: [{device-filter: "0x20B510DE", devices: all, mig-enabled: false}]'
    (warning,) = planned(text, gpus(1)).warnings
    assert warning == "mig[0] is skipped: the PCI numbers that its device-filter needs are unknown on this node"
    assert planned(text, node).warnings == ("mig[0] has no effect: its device-filter matches no GPU of this node",)


def test_one_name_for_whole_gpus_and_shares_is_a_warning() -> None:
    plan = planned("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [0]}]}}", gpus(2))
    assert "rename" in plan.warnings[0]


@pytest.mark.parametrize(
    ("text", "strategy", "part"),
    [
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 5}]}}", "none", "only 4 devices"),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [7]}]}}", "none", "at index: 7"),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [0]}]}, "
            "fractional: {resources: [{name: gpu, devices: [0]}]}}",
            "none",
            "sharing.fractional.resources[0] names the device 0 (GPU-0), and so does sharing.mps.resources[0]",
        ),
        ("sharing: {mps: {resources: [{name: mig-1g.10gb, replicas: 2}]}}", "mixed", "not supported for MIG devices"),
        ("sharing: {fractional: {resources: [{name: mig-1g.10gb}]}}", "mixed", "not supported for MIG devices"),
        (
            "sharing: {timeSlicing: {resources: [{name: mig-1g.10gb, replicas: 2, interval: long}]}}",
            "mixed",
            "whole GPUs only",
        ),
        ("mig: [{devices: all, mig-enabled: true, mig-devices: {}}]", "none", "write single or mixed"),
        ("mig: [{devices: [0], mig-enabled: true, mig-devices: {}}]", "single", "device 0 has no MIG devices"),
        ("{}", "single", "same migEnabled value"),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}", "mixed", "maximum allowed replicas exceeded"),
        ("mig: [{devices: [0], mig-enabled: true, mig-devices: {1c.2g.20gb: 1}}]", "mixed", "resources.mig"),
        (
            "mig: [{devices: [0], mig-enabled: true, mig-devices: {4g.40gb: 2}}]",
            "mixed",
            "mig[0] cannot be applied to GPU 0",
        ),
    ],
)
def test_an_impossible_configuration_is_rejected_by_the_plan(text: str, strategy: str, part: str) -> None:
    geometry = catalogue.of_gpu("NVIDIA A100-SXM4-80GB", 80 * GIB)
    node = [dataclasses.replace(gpu, geometry=geometry, most_mps_clients=48) for gpu in gpus()]
    node[3] = with_mig(node[3], "1g.10gb")
    with pytest.raises(errors.GpushareError) as caught:
        planned(text, node, mig_strategy=strategy)
    assert part in str(caught.value)


def test_a_named_partition_is_resolved_per_gpu_model() -> None:
    small, large, none = gpus(3)
    node = [
        dataclasses.replace(small, geometry=catalogue.MODELS["A100-40GB"]),
        dataclasses.replace(large, geometry=catalogue.MODELS["A100-80GB"]),
        dataclasses.replace(none, mig_capable=False),
    ]
    balanced = planned("mig: all-balanced", node).assignments
    assert [str(balanced[gpu.uuid]) for gpu in node] == [
        "mig, 2 × 1g.5gb + 1 × 2g.10gb + 1 × 3g.20gb",
        "mig, 2 × 1g.10gb + 1 × 2g.20gb + 1 × 3g.40gb",
        "exclusive, nvidia.com/gpu",
    ]
    only_small = planned("mig: all-1g.5gb", node).assignments
    assert [str(only_small[gpu.uuid]) for gpu in node] == [
        "mig, 7 × 1g.5gb",
        "exclusive, nvidia.com/gpu",
        "exclusive, nvidia.com/gpu",
    ]
    with pytest.raises(
        errors.ConfigError, match=r"mig is all-1g.6gb, which no GPU of this node supports: write all-1g"
    ):
        planned("mig: all-1g.6gb", node)
    with pytest.raises(errors.ConfigError, match="none of them supports MIG"):
        planned("mig: all-balanced", [node[2]])


def test_all_disabled_applies_to_every_node() -> None:
    can, cannot, unknown = gpus(3)
    node = [with_mig(can, "1g.10gb"), dataclasses.replace(cannot, mig_capable=False), unknown]
    assert unknown.geometry is None
    plan = planned("mig: all-disabled", node)
    assert [str(plan.assignments[gpu.uuid]) for gpu in node] == [
        "exclusive, nvidia.com/gpu, MIG off",
        "exclusive, nvidia.com/gpu",
        "exclusive, nvidia.com/gpu, MIG off",
    ]
    assert planned("mig: all-disabled", node[1:2]).warnings == ()
    with pytest.raises(errors.ConfigError, match="write all-disabled, all-enabled"):
        planned("mig: all-balanced", [unknown])


def test_a_gpu_without_mig_is_skipped_unless_an_entry_names_it() -> None:
    node = [dataclasses.replace(gpu, mig_capable=False) for gpu in gpus(1)]
    plan = planned("mig: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 1}}]", node)
    assert plan.assignments["GPU-0"].mode is Mode.EXCLUSIVE
    with pytest.raises(errors.ConfigError, match="does not support MIG"):
        planned("mig: [{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 1}}]", node)


def test_time_slicing_a_count_of_mig_devices_always_picks_the_same_ones() -> None:
    text = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: mig-1g.10gb, replicas: 2, devices: 3}]}}"
    node = [with_mig(gpu, "1g.10gb", "1g.10gb") for gpu in gpus(2)]
    plan = planned(text, node)
    assert offered(plan, node) == {
        "nvidia.com/mig-1g.10gb.shared": [
            f"MIG-{device}::{number}" for device in ("0-0", "0-1", "1-0") for number in (0, 1)
        ],
        "nvidia.com/mig-1g.10gb": ["MIG-1-1"],
    }


def test_a_mig_device_that_was_deleted_is_not_offered() -> None:
    node = [with_mig(gpu, "1g.10gb", "1g.10gb") for gpu in gpus(1)]
    plan = planned('sharing: {timeSlicing: {resources: [{name: mig-1g.10gb, replicas: 2, devices: ["0:1"]}]}}', node)
    node[0] = with_mig(node[0], "1g.10gb")
    assert offered(plan, node) == {"nvidia.com/mig-1g.10gb": ["MIG-0-0"]}


def test_a_gpu_model_can_have_its_own_resource_name() -> None:
    node = [*gpus(1), HardwareGpu("GPU-1", 1, "Tesla T4")]
    plan = planned("resources: {gpus: [{pattern: '*A100*', name: a100}]}", node)
    assert offered(plan, node) == {"nvidia.com/a100": ["GPU-0"], "nvidia.com/gpu": ["GPU-1"]}


DEVICES = st.integers(1, 6).map(lambda count: tuple(WholeDevice(f"GPU-{n}", str(n), f"GPU-{n}") for n in range(count)))
ENTRIES = st.lists(
    st.builds(
        device_resources.SharedResource,
        mode=st.sampled_from([Mode.MPS, Mode.TIME_SLICING]),
        resource=st.just("nvidia.com/gpu"),
        devices=st.one_of(
            st.just(model.ALL),
            st.integers(1, 6).map(lambda count: Devices(count=count)),
            st.lists(st.integers(0, 6).map(str), max_size=3).map(lambda listed: Devices(listed=tuple(listed))),
        ),
        advertised=st.sampled_from(["nvidia.com/gpu", "nvidia.com/other"]),
        replicas=st.integers(2, 5),
    ),
    max_size=3,
)


@pytest.mark.slow
@given(DEVICES, ENTRIES)
def test_advertised_device_ids_are_unique_and_cover_every_device(
    devices: tuple[WholeDevice, ...], entries: list[device_resources.SharedResource]
) -> None:
    try:
        owners = device_resources.claims({"nvidia.com/gpu": devices}, entries)
    except errors.ConfigError as error:
        assert "device" in str(error)
        return
    assert owners.keys() <= {device.uuid for device in devices}
    ids = [
        identity
        for device in devices
        for identity in device_resources.identities(
            device.uuid, owners[device.uuid].replicas if device.uuid in owners else 1
        )
    ]
    assert len(ids) == len(set(ids))
    assert {device_resources.device_of(identity) for identity in ids} == {device.uuid for device in devices}


def test_strategy_none_offers_a_gpu_in_mig_mode_as_a_whole() -> None:
    node = [with_mig(gpus(1)[0], "1g.10gb")]
    assert device_resources.by_resource(node, strategy="none") == {
        "nvidia.com/gpu": (WholeDevice("GPU-0", "0", "GPU-0"),)
    }


@pytest.mark.parametrize(
    ("isolations", "allowed"), [((Isolation.MPS,), True), ((Isolation.ARBITER, Isolation.MPS), False), ((), False)]
)
def test_a_gpu_may_be_exclusive_where_all_shares_are_clients_of_mps(
    isolations: tuple[Isolation, ...], allowed: bool
) -> None:
    gpu = HardwareGpu("GPU-a", 0, compute_mode=ComputeMode.EXCLUSIVE_PROCESS)
    assert (contradiction(gpu, Assignment(Mode.FRACTIONAL, isolations=isolations)) == "") is allowed
