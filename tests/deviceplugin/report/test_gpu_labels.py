"""The labels of a node. tests/conformance compares the values with NVIDIA's."""

from __future__ import annotations

import dataclasses

import pytest

from deviceplugin.report import gpu_labels, node_writers
from gpushare.gpunode import Mode
from gpushare.modes.assignment import Assignment

A100 = gpu_labels.LabelledGpu("NVIDIA A100-SXM4-40GB", 40960, (8, 0))
FACTS = gpu_labels.NodeFacts(
    "550.54.15", (12, 4), "DGX A100", (A100,) * 2, (0x030200,) * 2, (True,) * 2, ("c.1", "c.1")
)


def labels(facts: gpu_labels.NodeFacts | None, sharing: gpu_labels.LabelledSharing | None = None) -> dict[str, str]:
    return gpu_labels.all_labels(
        facts, strategy="none", sharing=sharing or gpu_labels.LabelledSharing(), started=1_700_000_000
    )


def test_labels_name_machine_model_and_fabric() -> None:
    values = labels(FACTS)
    assert values["nvidia.com/gpu.machine"] == "DGX-A100"
    assert values["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert values["nvidia.com/gpu.count"] == "2"
    assert values["nvidia.com/gpu.clique"] == "c.1"
    assert values["nvidia.com/gfd.timestamp"] == "1700000000"


def test_without_a_driver_only_the_timestamp_remains() -> None:
    assert labels(None) == {"nvidia.com/gfd.timestamp": "1700000000"}


def test_label_says_whether_any_gpu_is_virtual() -> None:
    assert labels(FACTS)["nvidia.com/vgpu.present"] == "false"
    assert labels(dataclasses.replace(FACTS, virtual=(False, True)))["nvidia.com/vgpu.present"] == "true"


def test_gpus_in_different_fabrics_get_no_clique_label() -> None:
    assert "nvidia.com/gpu.clique" not in labels(dataclasses.replace(FACTS, cliques=("c.1", "c.2")))


def test_labels_name_the_most_frequent_model() -> None:
    other = dataclasses.replace(A100, model="NVIDIA L4")
    for gpus in ((A100, A100, other), (other, A100, A100)):
        values = labels(dataclasses.replace(FACTS, gpus=gpus))
        assert (values["nvidia.com/gpu.product"], values["nvidia.com/gpu.count"]) == ("NVIDIA-A100-SXM4-40GB", "2")


def test_unknown_mig_strategy_is_an_error() -> None:
    with pytest.raises(gpu_labels.StrategyError, match="must be one of none, single, mixed"):
        gpu_labels.all_labels(FACTS, strategy="bogus", sharing=gpu_labels.LabelledSharing())


@pytest.mark.parametrize(
    ("in_force", "kind", "replicas"),
    [
        ({"a": Assignment(Mode.EXCLUSIVE, "nvidia.com/gpu")}, "none", 1),
        ({"a": None, "b": Assignment(Mode.FRACTIONAL)}, "none", 1),
        ({"a": Assignment(Mode.TIME_SLICING, "nvidia.com/gpu", 4)}, "time-slicing", 4),
        (
            {
                "a": Assignment(Mode.TIME_SLICING, "nvidia.com/gpu", 4),
                "b": Assignment(Mode.MPS, "nvidia.com/gpu.shared", 2),
            },
            "mps",
            2,
        ),
    ],
)
def test_sharing_follows_the_modes_in_force(in_force: dict[str, Assignment | None], kind: str, replicas: int) -> None:
    sharing = node_writers.sharing_in_force(in_force)
    assert (sharing.kind, sharing.replication("nvidia.com/gpu").replicas) == (kind, replicas)
