"""Of a pod that has ended `why` says how, and nobody is said to come to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare import codec
from tests.gpushare.defragmentation import clusters
from tests.kubectl_gpushare.conftest import Plugin

REJECTED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("", REJECTED, "UnexpectedAdmissionError: no healthy devices present; nobody makes another: delete it and"),
        ("ReplicaSet", REJECTED, "UnexpectedAdmissionError: no healthy devices present"),
        ("", {"phase": "Succeeded"}, "Succeeded"),
    ],
)
@pytest.mark.parametrize("fits", [True, False])
def test_of_a_pod_that_has_ended(
    plugin: Plugin, tmp_path: Path, kind: str, status: dict[str, str], said: str, fits: bool
) -> None:
    ended = {**clusters.owned("p", kind=kind, request="0.5" if fits else "1"), "status": status}
    there = clusters.owned("there", request="0.5")
    nodes = [view.node for view in clusters.cluster((there, "n0/0"), gpus=1).views.values()]
    items = [*map(codec.to_document, nodes), *(clusters.machine(node.name, gpus=1) for node in nodes), there, ended]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    printed = plugin("why", "p", "-n", "default", "--from", path).out
    assert f"Ended:      {said}" in printed
    assert ("one like it would fit now, on n0/0" in printed) is fits
    assert "the placer comes to it" not in printed


def test_of_a_placed_pod_that_no_node_takes_any_more(plugin: Plugin, tmp_path: Path) -> None:
    there = clusters.owned("there", request="0.5")
    there["spec"]["nodeSelector"] = {**(there["spec"].get("nodeSelector") or {}), "pool": "gone"}
    nodes = [view.node for view in clusters.cluster((there, "n0/0"), gpus=1).views.values()]
    items = [
        *map(codec.to_document, nodes),
        *({"kind": "Node", "apiVersion": "v1", **clusters.machine(node.name, gpus=1)} for node in nodes),
        there,
    ]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    lines = [line.strip() for line in plugin("why", "there", "-n", "default", "--from", path).out.splitlines()]
    (said,) = [line for line in lines if line.startswith("Would Do:")]
    count = len(nodes)
    assert said.removeprefix("Would Do:").strip() == f"{count} node{'s' * (count > 1)} cannot take the pod"
