"""The sentences of `why` about waiting and ended pods are consistent."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.gpunode import Condition
from gpushare.placement import explanation
from tests import builders
from tests.gpushare.defragmentation import clusters
from tests.kubectl_gpushare.conftest import Plugin

REJECTED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("", REJECTED, "UnexpectedAdmissionError: no healthy devices present; no controller recreates it"),
        ("ReplicaSet", REJECTED, "UnexpectedAdmissionError: no healthy devices present"),
        ("", {"phase": "Succeeded"}, "Succeeded"),
    ],
)
@pytest.mark.parametrize("fits", [True, False])
def test_why_explains_an_ended_pod(
    plugin: Plugin, tmp_path: Path, kind: str, status: dict[str, str], said: str, fits: bool
) -> None:
    ended = {**clusters.owned("p", kind=kind, request="0.5" if fits else "1"), "status": status}
    there = clusters.owned("there", request="0.5")
    nodes = [view.node for view in clusters.cluster((there, "n0/0"), gpus=1).views.values()]
    items = [*map(codec.to_document, nodes), *(builders.node_object(node.name, gpus=1) for node in nodes), there, ended]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    printed = plugin("why", "p", "-n", "default", "--from", path).out
    assert f"Ended:      {said}" in printed
    assert ("one like it would fit now, on n0/0" in printed) is fits
    assert ("Fits:       one like it would fit nowhere now: no GPU fits 1 GPU" in printed) is not fits
    for waiting in ("the placer comes to it", "Reason:", "Would Fit:", "Waits For:", "Recorded:"):
        assert waiting not in printed


@pytest.mark.parametrize(("verb", "title"), [(("why",), "Not Started:"), (("describe", "pod"), "Problems")])
def test_reason_of_the_agent_for_not_starting_a_container_is_shown(
    plugin: Plugin, tmp_path: Path, verb: tuple[str, ...], title: str
) -> None:
    why = "the MPS daemon of GPU-n0-0 takes no client now: it has ended"
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": why}}
    placed = clusters.owned("p", request="0.5")
    placed["status"] = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": waiting}]}
    nodes = [view.node for view in clusters.cluster((placed, "n0/0"), gpus=1).views.values()]
    path = write(tmp_path / "cluster.json", [*map(codec.to_document, nodes), placed])
    printed = " ".join(plugin(*verb, "p", "-n", "default", "--from", path).out.split())
    assert title in printed
    assert f"container main waits with CreateContainerConfigError: {why}" in printed


def test_rejection_by_the_kubelet_is_a_problem_of_the_pod(plugin: Plugin, tmp_path: Path) -> None:
    ended = {**clusters.owned("p", request="0.5"), "status": REJECTED}
    path = write(tmp_path / "cluster.json", [codec.to_document(builders.node("n0", gpus=1)), ended])
    printed = " ".join(plugin("describe", "pod", "p", "-n", "default", "--from", path).out.split())
    assert "Problems" in printed
    assert "UnexpectedAdmissionError: no healthy devices present" in printed


def gated(name: str, **asks: str) -> dict[str, Any]:
    manifest = builders.pod(name, **asks)
    manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    return manifest


def write(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


@pytest.mark.parametrize(("asked", "said"), [({"memory": "200Gi"}, "change what it asks for"), ({}, "once it fits")])
@pytest.mark.parametrize("verb", [("why",), ("describe", "pod")])
def test_pod_that_never_fits_is_not_promised_a_place(
    plugin: Plugin, tmp_path: Path, asked: dict[str, str], said: str, verb: tuple[str, ...]
) -> None:
    waiting = gated("p", request="1", **asked)
    waiting["metadata"]["annotations"][contract.REASON] = f"no GPU fits it; {explanation.NEVER}" if asked else "taken"
    there = clusters.owned("there", request="0.5")
    nodes = [view.node for view in clusters.cluster((there, "n0/0"), gpus=1).views.values()]
    node_objects = [builders.node_object(node.name, gpus=1) for node in nodes]
    path = write(tmp_path / "cluster.json", [*map(codec.to_document, nodes), *node_objects, there, waiting])
    assert said in plugin(*verb, "p", "-n", "default", "--from", path).out


@pytest.mark.parametrize("stopped", [True, False])
def test_node_with_a_stopped_agent_is_a_nearer_miss_than_an_excluded_one(
    plugin: Plugin, tmp_path: Path, stopped: bool
) -> None:
    condition = Condition(contract.CONDITION_READY, "False", contract.REASON_AGENT_STOPPED, "the agent has stopped")
    nodes = [builders.node("n0", gpus=1), builders.node("n1", gpus=1)]
    if stopped:
        nodes[1] = dataclasses.replace(nodes[1], conditions=(condition,))
    node_objects = [builders.node_object(node.name, gpus=1) for node in nodes]
    node_objects[1]["status"]["allocatable"][contract.RESOURCE_PERCENT] = "0"
    waiting = gated("p", request="1")
    waiting["spec"]["nodeSelector"] = {contract.HOSTNAME_LABEL: "n1"}
    path = write(tmp_path / "cluster.json", [*map(codec.to_document, nodes), *node_objects, waiting])
    printed = plugin("why", "p", "-n", "default", "--from", path).out
    assert "Nearest:    n1" in printed
    assert "if the agent of n1 ran: on n1/0" in printed


def test_why_explains_a_placed_pod_that_no_node_takes_now(plugin: Plugin, tmp_path: Path) -> None:
    there = clusters.owned("there", request="0.5")
    there["spec"]["nodeSelector"] = {**(there["spec"].get("nodeSelector") or {}), "pool": "gone"}
    nodes = [view.node for view in clusters.cluster((there, "n0/0"), gpus=1).views.values()]
    items = [
        *map(codec.to_document, nodes),
        *(builders.node_object(node.name, gpus=1) for node in nodes),
        there,
    ]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    lines = [line.strip() for line in plugin("why", "there", "-n", "default", "--from", path).out.splitlines()]
    (said,) = [line for line in lines if line.startswith("Would Do:")]
    count = len(nodes)
    assert said.removeprefix("Would Do:").strip() == f"{count} node{'s' * (count > 1)} cannot take the pod"


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: in use"}
STILL_GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "a gate"}


@pytest.mark.parametrize(
    ("spec", "conditions", "said"),
    [
        ({}, [UNSCHEDULABLE], "the scheduler cannot bind it to n0: 0/1 nodes: in use"),
        ({"schedulerName": "other"}, [], 'the scheduler "other" of its spec.schedulerName has not bound it'),
        ({"schedulerName": "default-scheduler"}, [], ""),
        ({}, [STILL_GATED], ""),
        ({"nodeName": "n0", "schedulerName": "other"}, [], ""),
    ],
)
def test_a_placed_pod_that_is_not_bound_says_why(
    plugin: Plugin, tmp_path: Path, spec: dict[str, str], conditions: list[dict[str, str]], said: str
) -> None:
    there = clusters.owned("there", request="0.5")
    nodes = [view.node for view in clusters.cluster((there, "n0/0"), gpus=1).views.values()]
    there["spec"] = {**{key: value for key, value in there["spec"].items() if key != "nodeName"}, **spec}
    there["metadata"]["annotations"][contract.NODE] = "n0"
    there["status"] = {"phase": "Pending", "conditions": conditions}
    node_objects = [builders.node_object(node.name, gpus=1) for node in nodes]
    path = write(tmp_path / "cluster.json", [*map(codec.to_document, nodes), *node_objects, there])
    for verb, title in ((("why",), "Not Bound:"), (("describe", "pod"), "the scheduler ")):
        printed = plugin(*verb, "there", "-n", "default", "--from", path).out
        assert (title in printed) is bool(said), printed
        assert said in " ".join(printed.split())


def test_bounds_of_the_namespace_are_those_of_the_webhook(plugin: Plugin, tmp_path: Path) -> None:
    """`fit` applies defaults and bounds; `why` gives the reason for denying a new pod, and no remedy beyond the bounds."""
    annotations = {
        "default.gpushare.io/memory": "8Gi",
        "min.gpushare.io/memory": "4Gi",
        "max.gpushare.io/request": "0.6",
    }
    namespace = {"kind": "Namespace", "metadata": {"name": "default", "annotations": annotations}}
    waiting = gated("p", request="0.8", memory="8Gi")
    there = clusters.owned("there", request="0.5")
    nodes = [view.node for view in clusters.cluster((there, "n0/0"), gpus=1).views.values()]
    node_objects = [builders.node_object(node.name, gpus=1) for node in nodes]
    items = [*map(codec.to_document, nodes), *node_objects, namespace, there, waiting]
    path = write(tmp_path / "cluster.json", items)
    said = (
        'gpushare.io/request of container "main" is 0.8, but the namespace "default" has max.gpushare.io/request "0.6"'
    )
    refused = plugin("fit", "--request", "0.8", "--from", path)
    assert (refused.code, refused.err) == (1, f'error: {said}: write at most "0.6"\n')
    assert "with 8Gi" in plugin("fit", "--request", "0.5", "--from", path).out
    explained = json.loads(plugin("why", "p", "-n", "default", "--from", path, "-o", "json").out)
    assert explained["ifRecreated"] == f'{said}: write at most "0.6"'
    shown = " ".join(plugin("why", "p", "-n", "default", "--from", path).out.split())
    assert f'If Recreated: denied: {said}: write at most "0.6"' in shown
    proposed = [change["change"] for change in explained["changes"]]
    assert 'with gpushare.io/request "0.5" instead of "0.8"' in proposed
    bounded = namespace | {"metadata": {"name": "default", "annotations": {"min.gpushare.io/request": "0.6"}}}
    path = write(path, [bounded if item is namespace else item for item in items])
    without = json.loads(plugin("why", "p", "-n", "default", "--from", path, "-o", "json").out)
    assert not any("gpushare.io/request" in change["change"] for change in without["changes"])


def test_why_has_what_kueue_says_of_the_pod(plugin: Plugin, tmp_path: Path) -> None:
    queued = gated("queued", request="0.5")
    queued["spec"]["schedulingGates"].append({"name": "kueue.x-k8s.io/admission"})
    said = "couldn't assign flavors to pod set main: insufficient unused quota for gpushare.io/gpu-percent"
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "default", "ownerReferences": [{"kind": "Pod", "uid": "u-1"}]},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": said}]},
    }
    queued["metadata"]["uid"] = "u-1"
    node = codec.to_document(builders.node())
    path = write(tmp_path / "cluster.json", [node, queued, workload])
    assert f"Kueue: {said}" in plugin("why", "queued", "--from", path).out
    assert json.loads(plugin("why", "queued", "--from", path, "-o", "json").out)["heldBack"][1] == f"Kueue: {said}"
    workload["status"]["conditions"][0]["status"] = "True"  # type: ignore[index]
    assert "Kueue: " not in plugin("why", "queued", "--from", write(path, [node, queued, workload])).out
    queued["metadata"]["uid"] = "u-2"
    workload["status"]["conditions"][0]["status"] = "False"  # type: ignore[index]
    assert "Kueue: " not in plugin("why", "queued", "--from", write(path, [node, queued, workload])).out
