"""`why` says whose place a waiting pod would take by preemption."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, preemption
from gpushare.allocation import PodRef
from gpushare.placement_profile import PlacementProfile
from tests import builders
from tests.gpushare.defragmentation import clusters
from tests.kubectl_gpushare.conftest import Plugin

LOW = clusters.owned("low", priority=1, request="1")
LOWER = clusters.owned("lower", request="1")


def high(**spec: Any) -> dict[str, Any]:
    manifest = builders.pod("high", request="1", uid="uid-high", spec={"priority": 10, **spec})
    manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    return manifest


def why(
    plugin: Plugin, directory: Path, waiting: dict[str, Any], *more: dict[str, Any], lower: dict[str, Any] = LOWER
) -> str:
    views = clusters.cluster((LOW, "n0/0"), (lower, "n0/1")).views.values()
    nodes = [codec.to_document(view.node) for view in views]
    node_objects = [clusters.node_manifest(view.node.name) for view in views]
    items = [*nodes, *node_objects, LOW, lower, waiting, *more]
    path = directory / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    document = json.loads(plugin("why", "high", "-n", "default", "-o", "json", "--from", path).out)
    printed = " ".join(plugin("why", "high", "-n", "default", "--from", path).out.split())
    assert bool(document["preemption"]) is ("Preemption: " in printed)
    assert document["preemption"] in printed
    return str(document["preemption"])


def profile(*, is_on: bool) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": contract.PLACEMENT_CONFIG_MAP, "namespace": contract.SYSTEM_NAMESPACE},
        "data": PlacementProfile(preemption=is_on).data(),
    }


def test_the_lowest_priority_would_go_and_the_mode_is_said(plugin: Plugin, tmp_path: Path) -> None:
    would = "would take the place of default/lower on n0, if preemption were on"
    assert why(plugin, tmp_path, high()) == would
    assert why(plugin, tmp_path, high(), profile(is_on=False)) == would
    assert why(plugin, tmp_path, high(), profile(is_on=True)) == (
        "will take the place of default/lower on n0: preemption is on"
    )


def test_no_place_is_promised_among_more_nodes_than_the_placer_compares(
    plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "MAX_OPTIONS", 0)
    assert why(plugin, tmp_path, high(), profile(is_on=True)) == (
        "would take a place such as that of default/lower on n0: preemption is on"
    )


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_share_whose_pod_was_not_read_is_not_free(plugin: Plugin, tmp_path: Path, gpus: int) -> None:
    unread = builders.allocation("unread", "GPU-m0-0", pod_name="unread", uid="uid-unread")
    node = dataclasses.replace(builders.node("m0", gpus=gpus), allocations=(unread,))
    other = builders.allocation("low", "GPU-m0-1", pod_name="low-m0", uid="uid-low-m0")
    pods = [clusters.owned("low-m0", priority=-5, request="1")] if gpus == 2 else []
    node = dataclasses.replace(node, allocations=(unread, other)[:gpus])
    more = (codec.to_document(node), clusters.node_manifest("m0", gpus=gpus), *pods, profile(is_on=True))
    on = "m0" if gpus == 2 else "n0"
    assert f"on {on}: preemption is on" in why(plugin, tmp_path, high(), *more)


@pytest.mark.parametrize("lower", [{"kind": "Job"}, {"kind": ""}, {"no_evict": "true"}, {"priority": 50}])
def test_protected_pods_are_not_named(plugin: Plugin, tmp_path: Path, lower: dict[str, Any]) -> None:
    stays = clusters.owned("lower", **{"request": "1", **lower})
    assert "default/low on n0" in why(plugin, tmp_path, high(), lower=stays)


def test_a_budget_protects_its_pods(plugin: Plugin, tmp_path: Path) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "lower"}}},
        "status": {"disruptionsAllowed": 0},
    }
    assert "default/low on n0" in why(plugin, tmp_path, high(), budget)


@pytest.mark.parametrize("spec", [{"preemptionPolicy": "Never"}, {"priority": 0}])
def test_a_pod_that_may_not_preempt_gets_no_promise(plugin: Plugin, tmp_path: Path, spec: dict[str, Any]) -> None:
    assert why(plugin, tmp_path, high(**spec)) == ""


def test_a_nominated_pod_takes_its_place(plugin: Plugin, tmp_path: Path) -> None:
    held = builders.allocation(f"{contract.PREEMPTION_PREFIX}x", "GPU-n9-0", request=0, pod_name="high", uid="uid-high")
    full = builders.allocation("full", "GPU-n9-0", request=100, pod_name="full", uid="uid-full")
    node = dataclasses.replace(builders.node("n9", gpus=1), allocations=(full, held))
    assert why(plugin, tmp_path, high(), codec.to_document(node)) == (
        "takes the place of other pods on n9, which end or are being evicted"
    )


def nominated(name: str, namespace: str, node: str) -> dict[str, Any]:
    """Return a node with a full GPU, whose place this pod takes."""
    held = builders.allocation(f"{contract.PREEMPTION_PREFIX}{name}", f"GPU-{node}-0", request=0, memory_gib=0)
    held = dataclasses.replace(held, pod=PodRef(namespace, name, f"uid-{name}"))
    full = builders.allocation(f"full-{name}", f"GPU-{node}-0", pod_name=f"full-{name}", uid=f"uid-full-{name}")
    return codec.to_document(dataclasses.replace(builders.node(node, gpus=1), allocations=(full, held)))


def test_the_bounds_of_preemption_are_said(plugin: Plugin, tmp_path: Path) -> None:
    place = "would take the place of default/lower on n0, but at most"
    on = profile(is_on=True)
    assert why(plugin, tmp_path, high(), on, nominated("other", "default", "m0")) == (
        f"{place} one pod of a namespace preempts at a time"
    )
    many = [nominated(f"other-{number}", f"ns-{number}", f"m{number}") for number in range(4)]
    assert why(plugin, tmp_path, high(), on, *many[:3]).startswith("will take the place")
    assert why(plugin, tmp_path, high(), on, *many) == f"{place} 4 pods preempt at a time"


def test_a_node_where_another_pod_preempts_is_left_out(plugin: Plugin, tmp_path: Path) -> None:
    lowest = clusters.owned("lowest", priority=-5, request="1")
    held = builders.allocation(f"{contract.PREEMPTION_PREFIX}x", "GPU-m0-1", request=0, memory_gib=0)
    held = dataclasses.replace(held, pod=PodRef("ml", "other", "uid-other"))
    full = builders.allocation("full", "GPU-m0-0", "GPU-m0-1", pod_name="lowest", uid="uid-lowest")
    node = dataclasses.replace(builders.node("m0", gpus=2), allocations=(full, held))
    more = (codec.to_document(node), clusters.node_manifest("m0"), lowest, profile(is_on=True))
    assert "default/lower on n0" in why(plugin, tmp_path, high(), *more)


def test_nothing_is_promised_while_only_a_hold_is_in_the_way(plugin: Plugin, tmp_path: Path) -> None:
    held = builders.allocation(f"{contract.BACKFILL_PREFIX}x", "GPU-m0-0", request=100, memory_gib=80)
    held = dataclasses.replace(held, pod=PodRef("ml", "first", "uid-first"))
    node = dataclasses.replace(builders.node("m0", gpus=1), allocations=(held,))
    more = (codec.to_document(node), clusters.node_manifest("m0", gpus=1), profile(is_on=True))
    assert why(plugin, tmp_path, high(), *more) == ""


def test_nothing_is_promised_while_a_gpu_comes_free_anyway(plugin: Plugin, tmp_path: Path) -> None:
    made = builders.pod("old", request="1", uid="uid-old", spec={"priority": 10})
    ending = {**made, "metadata": {**made["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    full = builders.allocation("full", "GPU-n9-0", request=100, memory_gib=80, pod_name="old", uid="uid-old")
    node = dataclasses.replace(builders.node("n9", gpus=1), allocations=(full,))
    more = (codec.to_document(node), clusters.node_manifest("n9", gpus=1), ending)
    assert why(plugin, tmp_path, high(), *more) == ""
