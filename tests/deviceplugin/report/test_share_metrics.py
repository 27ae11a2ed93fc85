"""The metrics for cost tools: fractions of GPUs per container, which add up to whole GPUs."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest

from deviceplugin.report import share_metrics
from deviceplugin.report.share_metrics import DeviceHolder
from deviceplugin.state.node_state import ModesInForce, Observable, ObservableGpus
from deviceplugin.state.pod_resources import ContainerDevices
from gpushare import ledger
from gpushare.allocation import PodRef
from gpushare.gpunode import Gpu, GpuNode, Mode
from gpushare.modes.assignment import Offered
from gpushare.modes.hardware_gpu import HardwareGpu, HardwareMigDevice
from tests import builders

GIB = 1 << 30


def told(node: GpuNode | None, *held: DeviceHolder) -> dict[tuple[str, ...], float]:
    """Return the allocated fraction by namespace, pod and container."""
    family = share_metrics.allocation(node, held, node_name="node-a")
    values = {}
    for sample in family.samples:
        key = tuple(sample.labels[label] for label in ("namespace", "pod", "container"))
        assert key not in values, "a series is there twice"
        assert sample.labels["node"] == "node-a"
        values[key] = sample.value
    return values


def quarters(*pods: PodRef, containers: tuple[str, ...] = ("main",)) -> GpuNode:
    node = builders.node(gpus=1)
    for number, pod in enumerate(pods):
        entry = builders.allocation(f"a{number}", request=25, memory_gib=20)
        shares = tuple(dataclasses.replace(share, containers=containers) for share in entry.shares)
        node = ledger.reserve(node, dataclasses.replace(entry, pod=pod, shares=shares))
    return node


def test_four_quarters_sum_to_a_gpu() -> None:
    ratios = told(quarters(*(PodRef("ml", f"p{number}", f"u{number}") for number in range(4))))
    assert ratios == {("ml", f"p{number}", "main"): 0.25 for number in range(4)}


def test_a_share_is_split_among_its_containers() -> None:
    ratios = told(quarters(PodRef("ml", "p", "u"), containers=("main", "side")))
    assert ratios == {("ml", "p", "main"): 0.125, ("ml", "p", "side"): 0.125}


def test_a_pod_and_its_successor_of_the_same_name_are_one_series() -> None:
    node = quarters(PodRef("ml", "p", "u1"), PodRef("ml", "p", "u2"))
    assert told(node) == {("ml", "p", "main"): 0.5}
    samples = [sample for family in share_metrics.granted(node, node_name="node-a") for sample in family.samples]
    assert sorted(sample.value for sample in samples) == [0.5, 40 * GIB]


def test_reservations_are_not_charged() -> None:
    node = quarters(PodRef("ml", "p", ""))
    assert told(node) == {}
    held = dataclasses.replace(quarters(PodRef("ml", "p", "u")).allocations[0], id="hold-x")
    assert told(dataclasses.replace(node, allocations=(held,))) == {}
    assert told(None) == {}


def test_a_whole_gpu_counts_1_in_addition_to_a_share() -> None:
    whole = DeviceHolder("ml", "p", "main", "nvidia.com/gpu", "GPU-x", 1)
    assert told(None, whole) == {("ml", "p", "main"): 1.0}
    assert told(quarters(PodRef("ml", "p", "u")), whole) == {("ml", "p", "main"): 1.25}


@pytest.mark.parametrize(
    ("profile", "part"), [("1g.10gb", 0.125), ("3g.40gb", 0.5), ("7g.80gb", 1.0), ("1g.20gb", 0.25), ("?", 1.0)]
)
def test_a_mig_device_is_charged_by_its_memory(profile: str, part: float) -> None:
    gpu = HardwareGpu("GPU-a", 0, mig_enabled=True, mig_devices=(HardwareMigDevice("MIG-a", 0, profile),))
    parts = share_metrics.parts([gpu], {"GPU-a": 80 * GIB})
    assert parts == {"GPU-a": ("GPU-a", 1.0), "MIG-a": ("GPU-a", part)}


def test_replicas_are_charged_as_fractions_of_their_gpu() -> None:
    replicas = tuple(Offered(f"GPU-a::{n}", "GPU-a", "GPU-a", "0", Mode.TIME_SLICING, replicas=4) for n in range(4))
    held = (
        ContainerDevices("ml", "one", "main", "nvidia.com/gpu", ("GPU-a::0",)),
        ContainerDevices("ml", "two", "main", "nvidia.com/gpu", ("GPU-a::1", "GPU-a::2")),
        # a counter, which belongs to no GPU
        ContainerDevices("ml", "share", "main", "gpushare.io/gpu-percent", ("GPU-a::7",)),
    )
    kubelet: Any = types.SimpleNamespace(held=held)
    made = share_metrics.DeviceHolders(
        kubelet,
        hardware=lambda: [HardwareGpu("GPU-a", 0)],
        gpus=ObservableGpus((Gpu("GPU-a", 0, "A100", 80 * GIB),)),
        in_force=Observable(ModesInForce({"nvidia.com/gpu": replicas})),
    )
    assert [(entry.pod, entry.devices, entry.part) for entry in made.all()] == [("one", 1, 0.25), ("two", 2, 0.5)]
