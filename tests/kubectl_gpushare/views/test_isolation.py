"""The isolations of GPUs and shares, with reasons, in every view; tables where all shares have leases omit them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, ledger, mig_shares
from gpushare.allocation import Isolation
from gpushare.gpunode import GpuNode, MemoryEnforcement
from gpushare.placement_profile import PlacementProfile
from tests import builders
from tests.kubectl_gpushare import sample
from tests.kubectl_gpushare.conftest import Ended

Plugin = Callable[..., Ended]

BOTH = (Isolation.ARBITER, Isolation.MPS)


def gpunode() -> GpuNode:
    """Return a node of two GPUs, both with MPS, the first with an MPS share."""
    node = builders.node("gpu-1", gpus=2, isolations=BOTH, memory_enforcement=MemoryEnforcement.DRIVER)
    entry = builders.allocation(
        "a1", "GPU-gpu-1-0", request=30, memory_gib=8, pod_name="decoder", uid="u-decoder", isolation=Isolation.MPS
    )
    return ledger.reserve(node, entry)


@pytest.fixture
def partitioned(tmp_path: Path) -> Path:
    """Return the cluster with its GPUs in four SM partitions, and a share in one of them."""
    node = builders.node("gpu-1", gpus=2, isolations=BOTH, sm_partitions=4)
    entry = builders.allocation(
        "a1", "GPU-gpu-1-0", request=25, memory_gib=8, pod_name="decoder", uid="u-decoder", isolation=Isolation.MPS
    )
    objects = json.loads(save(tmp_path, holder(isolation="mps", request="0.25")).read_text())
    objects["items"][0] = codec.to_document(ledger.reserve(node, entry))
    path = tmp_path / "partitioned.json"
    path.write_text(json.dumps(objects))
    return path


def holder(**annotations: str) -> dict[str, Any]:
    asked = {"request": "0.3", "memory": "8Gi"} | annotations
    made = builders.pod("decoder", uid="u-decoder", phase="Running", **asked)
    results = {contract.ALLOCATION: "a1", contract.NODE: "gpu-1", contract.GPU_UUIDS: "GPU-gpu-1-0"}
    made["metadata"]["annotations"] |= {**results, contract.ISOLATION_GIVEN: "mps"}
    made["metadata"]["labels"] = {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE}
    made["spec"]["nodeName"] = "gpu-1"
    return made


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    return save(tmp_path, holder(isolation="auto", limit="0.3"))


def save(directory: Path, *pods: dict[str, Any], default: str = "arbiter") -> Path:
    path = directory / "cluster.json"
    placement = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": contract.PLACEMENT_CONFIG_MAP, "namespace": contract.SYSTEM_NAMESPACE},
        "data": PlacementProfile(isolation=default).data(),
    }
    nodes = [codec.to_document(gpunode()), builders.node_object("gpu-1", gpus=2)]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*nodes, *pods, placement]}))
    return path


def words(text: str) -> str:
    return " ".join(text.split())


def test_tables_have_a_column_only_if_something_has_another_kind(plugin: Plugin, cluster: Path, tmp_path: Path) -> None:
    header, first, second, *_ = plugin("top", "--from", cluster).out.splitlines()
    assert "ISOLATION" in header
    assert " mps " in first
    assert " arbiter,mps " in second
    header, first, *_ = plugin("top", "pods", "-A", "--from", cluster).out.splitlines()
    assert "ISOLATION" in header
    assert " mps " in first
    plain = sample.save(tmp_path / "plain.json")
    for kind in ("gpus", "pods"):
        assert "ISOLATION" not in plugin("top", kind, "-o", "wide", "--from", plain).out


def test_free_part_next_to_mps_clients_is_no_hole_for_other_pods(plugin: Plugin, cluster: Path, tmp_path: Path) -> None:
    def gpus(path: Path) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(plugin("top", "-o", "json", "--from", path).out)["items"]
        return items

    first, second = gpus(cluster)
    assert (first["isolations"], first["isolation"], first["memoryEnforcement"]) == (
        ["arbiter", "mps"],
        "mps",
        "driver",
    )
    assert first["strandedGpus"] == first["freeGpus"] > 0
    assert second["isolation"] == ""
    assert first["reason"] == "takes only pods with isolation mps, as those on it have"
    first, _ = gpus(save(tmp_path, default="auto"))
    assert first["strandedGpus"] < first["freeGpus"]
    assert first["reason"] == ""


def test_describe_shows_what_a_gpu_offers_and_what_a_pod_got(plugin: Plugin, cluster: Path) -> None:
    page = words(plugin("describe", "gpu", "gpu-1/0", "--from", cluster).out)
    assert "Isolations: arbiter or mps; now only mps, as its shares have" in page
    assert "Memory Limits: refused by the driver, and by the library in each process" in page
    page = words(plugin("describe", "gpu", "gpu-1/1", "--from", cluster).out)
    assert "Isolations: arbiter or mps Memory Limits" in page
    page = words(plugin("describe", "pod", "decoder", "--from", cluster).out)
    assert "Isolation: mps: kernels of several pods run side by side under MPS, which leases cannot do" in page
    document = json.loads(plugin("describe", "pod", "decoder", "-o", "json", "--from", cluster).out)
    assert document["isolation"] == "mps"
    assert document["isolationWhy"].startswith("kernels of several pods")
    document = json.loads(plugin("describe", "gpu", "gpu-1/0", "-o", "json", "--from", cluster).out)
    assert [tenant["isolation"] for tenant in document["tenants"]] == ["mps"]


@pytest.mark.parametrize(
    ("default", "why"),
    [
        ("mps", "it is the cluster's default"),
        ("arbiter", "it was given when the pod was placed; now it would be arbiter"),
    ],
)
def test_reason_follows_from_the_published_default(plugin: Plugin, tmp_path: Path, default: str, why: str) -> None:
    path = save(tmp_path, holder(), default=default)
    assert f"Isolation: mps: {why}" in words(plugin("describe", "pod", "decoder", "--from", path).out)
    assert f"Isolation: mps: {why}" in words(plugin("why", "decoder", "--from", path).out)


def test_why_says_which_kinds_are_tried_and_that_another_would_fit(plugin: Plugin, tmp_path: Path) -> None:
    waits = sample.gated("ml/waits", request="0.9", isolation="mig")
    path = save(tmp_path, waits)
    ended = plugin("why", "waits", "-n", waits["metadata"]["namespace"], "--from", path)
    page = words(ended.out + ended.err)
    assert "Isolation: mig: gpushare.io/isolation asks for it" in page
    assert 'without gpushare.io/isolation "mig": on gpu-1/1' in page
    assert "takes no shares with isolation mig, only with arbiter or mps" in page


def test_fit_says_what_each_pod_would_get(plugin: Plugin, cluster: Path) -> None:
    page = words(
        plugin(
            "fit", "--request", "0.7", "--limit", "0.7", "--isolation", "auto", "--count", "2", "--from", cluster
        ).out
    )
    assert "Isolation: mps: kernels of several pods run side by side under MPS, which leases cannot do" in page
    page = words(plugin("fit", "--request", "0.5", "--from", cluster).out)
    assert "Isolation:" not in page
    document = json.loads(plugin("fit", "--request", "0.5", "-o", "json", "--from", cluster).out)
    assert document["pods"][0]["isolations"] == [
        {"isolation": "arbiter", "pods": 1, "why": "it is the cluster's default"}
    ]
    ended = plugin("fit", "--request", "0.5", "--isolation", "mps", "--gpus", "2", "--from", cluster)
    assert ended.code == 1
    assert "a process can use one MPS daemon" in ended.err


def test_partitions_are_shown_with_how_they_are_rounded(plugin: Plugin, partitioned: Path) -> None:
    said = (
        "Isolation: mps: gpushare.io/isolation asks for it, in one of 4 equal SM partitions, each rounded down to "
        "a multiple of 4 multiprocessors"
    )
    for verb in (("describe", "pod", "decoder"), ("why", "decoder")):
        assert said in words(plugin(*verb, "--from", partitioned).out)
    fit = ("fit", "--isolation", "mps", "--from", partitioned, "--request")
    assert said in words(plugin(*fit, "0.25").out)
    assert "has 4 equal SM partitions, which take requests of 0.21 to 0.25" in words(plugin(*fit, "0.3").out)
    page = words(plugin("describe", "gpu", "gpu-1/1", "--from", partitioned).out)
    assert "Isolations: arbiter or mps in 4 equal SM partitions" in page


def test_every_view_shows_the_profile_of_a_mig_device(plugin: Plugin, tmp_path: Path) -> None:
    kinds = (Isolation.ARBITER, Isolation.MIG)
    node = builders.node("gpu-1", gpus=2, isolations=kinds, mig_geometry=builders.mig_geometry())
    entry = builders.allocation(
        "a1", "GPU-gpu-1-0", request=30, memory_gib=8, pod_name="decoder", uid="u-decoder", isolation=Isolation.MIG
    )
    device = mig_shares.read_device(node.gpus[0], "3g.40gb@4")
    entry = dataclasses.replace(entry, shares=(mig_shares.on_device(entry.shares[0], device),))
    there = holder(isolation="mig", isolation_given="mig", mig_device=str(device))
    items = [codec.to_document(ledger.reserve(node, entry)), builders.node_object("gpu-1", gpus=2), there]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    asks_for_it = "mig (3g.40gb): gpushare.io/isolation asks for it"
    assert " mig (3g.40gb) " in plugin("top", "pods", "-A", "--from", path).out
    page = words(plugin("describe", "pod", "decoder", "--from", path).out)
    assert f"Isolation: {asks_for_it}" in page
    document = json.loads(plugin("describe", "pod", "decoder", "-o", "json", "--from", path).out)
    assert [share["migDevice"] for share in document["shares"]] == ["3g.40gb@4"]
    assert f"Isolation: {asks_for_it}" in words(plugin("why", "decoder", "--from", path).out)
    page = words(plugin("describe", "gpu", "gpu-1/0", "--from", path).out)
    assert "MIG Room: 4g.40gb or 3g.40gb or 2g.20gb or 1g.20gb or 1g.10gb" in page
    page = words(plugin("fit", "--request", "0.1", "--isolation", "mig", "--count", "2", "--from", path).out)
    assert "Isolation: mig (1g.10gb): gpushare.io/isolation asks for it Fits: yes, on gpu-1/0 (2)" in page
