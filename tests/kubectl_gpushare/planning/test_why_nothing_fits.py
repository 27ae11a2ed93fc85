"""The reasons of a waiting pod name each GPU, and every remedy on pod or nodes has been tried."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.defragmentation.moves import DefragPlan, DefragStep
from gpushare.gpu_capacity import Fragmentation
from gpushare.gpunode import Mode
from gpushare.refusal import Refusal
from gpushare.whatif.requesting_pod import RequestingPod
from kubectl_gpushare.output.values import Field
from kubectl_gpushare.planning import reasons
from kubectl_gpushare.planning.reasons import Reasons
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import defrag
from tests import builders
from tests.gpushare.defragmentation import clusters
from tests.kubectl_gpushare.conftest import Plugin


def waits(spec: dict[str, Any] | None = None, **asks: str) -> dict[str, Any]:
    """Return a stored pod, with the resources that the webhook has written."""
    manifest = builders.counted(clusters.owned("waits", **asks))
    manifest["spec"] |= {"schedulingGates": [{"name": contract.SCHEDULING_GATE}], **(spec or {})}
    return manifest


def why(
    manifest: dict[str, Any],
    *,
    held: str = "",
    memory: str = "40Gi",
    offers: bool = True,
    mode: Mode = Mode.FRACTIONAL,
    there: dict[str, Any] | None = None,
    **spec: Any,
) -> Reasons:
    """Explain a pod on three nodes with four GPUs each: n1 is full, one is sick, and n0 is like this.

    `held`, `memory`: of each GPU; `there`: on n1/0.
    """
    asks = [("n1", {"request": "1"}), *([("n0", {"request": held, "memory": memory})] if held else [])]
    placed = [(clusters.owned(f"{on}-{i}", **ask), f"{on}/{i}") for on, ask in asks for i in range(4)]
    placed[0] = (there or placed[0][0], "n1/0")
    nodes = [view.node for view in clusters.cluster(*placed, nodes=2, gpus=4).views.values()]
    node_objects = [builders.node_object(node.name, gpus=4) for node in nodes]
    node_objects[0]["spec"] = spec
    if not offers:
        node_objects[0]["status"]["allocatable"] |= dict.fromkeys(builders.agent_resources(4), "0")
    nodes[0] = dataclasses.replace(nodes[0], gpus=tuple(dataclasses.replace(gpu, mode=mode) for gpu in nodes[0].gpus))
    pods = [pod for pod, _ in placed]
    return reasons.explain(manifest, Snapshot(tuple(nodes), (*pods, manifest), node_objects=tuple(node_objects)))


def said(answer: Reasons) -> str:
    assert isinstance(answer.refusal, Refusal)
    return str(answer.refusal)


def misses(answer: Reasons) -> str:
    assert answer.refusal is not None
    return "; ".join(map(str, answer.refusal.rejected))


def test_full_cluster_names_each_gpu_and_proposes_idle_compute() -> None:
    answer = why(waits(request="0.05", memory="1Gi"), held="1")
    assert "8 with too little compute free; nearest: n0/0 has 0 of its compute free" in said(answer)
    assert answer.refusal is not None
    assert collections.Counter(miss.rule for miss in answer.refusal.rejected) == {"compute": 8, "health": 4}
    changes = {change.kind: change.sentence for change in answer.changes}
    assert changes["request"] == 'with gpushare.io/request "0" instead of "0.05"'


def test_gpu_in_another_mode_is_named_with_its_mode() -> None:
    for asks in ({"request": "0.05", "memory": "1Gi"}, {"memory": "1Gi"}):
        answer = why(waits(**asks), mode=Mode.EXCLUSIVE, offers=False)
        assert "4 not shared by annotation" in said(answer)


def test_stopped_agent_is_named_and_its_return_proposed() -> None:
    answer = why(waits(request="0.05", memory="1Gi"), offers=False)
    assert "n0 has free GPUs but no running agent: its kubelet offers no gpushare.io/gpu-" in misses(answer)
    assert [change.sentence for change in answer.changes] == ["if the agent of n0 ran"]


@pytest.mark.parametrize(
    ("spec", "more", "reason", "change"),
    [
        ({}, {"unschedulable": True}, "n0 is cordoned", "if the node n0 were uncordoned"),
        (
            {"nodeSelector": {"disk": "ssd"}},
            {},
            "n0 lacks the label disk=ssd of the pod's nodeSelector",
            "without disk=ssd in its nodeSelector",
        ),
        (
            {},
            {"taints": [{"key": "team", "value": "red", "effect": "NoSchedule"}]},
            "n0 has the taint team=red:NoSchedule, which the pod does not tolerate",
            "with a toleration of team=red:NoSchedule",
        ),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
                        }
                    }
                }
            },
            {},
            "n0 does not match the pod's node affinity",
            "without its required nodeAffinity",
        ),
    ],
)
def test_node_constraint_is_named_and_its_removal_proposed(
    spec: dict[str, Any], more: dict[str, Any], reason: str, change: str
) -> None:
    answer = why(waits(spec, request="0.05", memory="1Gi"), **more)
    assert reason in misses(answer)
    assert [change.sentence for change in answer.changes] == [change]


@pytest.mark.parametrize(("template", "tells"), [("old", True), ("new", False)])
def test_rolling_update_that_blocks_itself_gets_max_surge_0(template: str, tells: bool) -> None:
    there, new = clusters.owned("server-old", request="1"), waits(request="1")
    for manifest, its in ((there, template), (new, "new")):
        manifest["metadata"]["labels"]["pod-template-hash"] = its
        manifest["metadata"]["ownerReferences"][0]["name"] = f"server-{its}"
    changes = why(new, there=there, held="1", memory="80Gi").changes
    sentence = "if default/server-old, of an older template, ended first: maxSurge 0 in deploy/server"
    assert [(change.sentence, change.gpus) for change in changes] == [
        (sentence, "n1/0") if tells else ("if default/n0-0 ended", "n0/0")
    ]


def test_less_memory_is_tried_for_a_stored_pod() -> None:
    answer = why(waits(request="0.05", memory="50Gi"), held="0.5")
    assert "4 with too little memory free" in said(answer)
    changes = {change.kind: change.sentence for change in answer.changes}
    assert changes["memory"] == 'with gpushare.io/memory "40Gi" instead of "50Gi"'


def test_pods_waiting_for_one_reason_are_one_line() -> None:
    manifest = waits(request="0.05", memory="1Gi")
    steps = tuple(
        DefragStep(f"ml/pod-{number}", RequestingPod.from_manifest(manifest), "", reason="no GPU fits")
        for number in range(100)
    )
    nothing = Fragmentation(0, 0, 0, 0)
    page = defrag.page(
        DefragPlan((*steps, DefragStep("ml/other", steps[0].asked, "", reason="other")), nothing, nothing, ()), ()
    )
    lines = [entry.values for entry in page if isinstance(entry, Field) and entry.key == "No Way For"]
    assert lines == [("ml/pod-0, ml/pod-1, ml/pod-2 and 97 more: no GPU fits", "ml/other: other")]


def split(*, fixed: bool = False) -> tuple[dict[str, Any], Snapshot]:
    """Return a pod that wants both GPUs of a node; each GPU, also of the other node, has a pod with half a GPU."""
    placed = [
        (clusters.owned(f"{node}-{index}", kind="" if fixed else "ReplicaSet", request="0.5"), f"{node}/{index}")
        for node in ("n0", "n1")
        for index in (0, 1)
    ]
    nodes = [view.node for view in clusters.cluster(*placed, nodes=2).views.values()]
    manifest = waits(request="1", gpus="2")
    pods = (*(pod for pod, _ in placed), manifest)
    return manifest, Snapshot(
        tuple(nodes), pods, node_objects=tuple(builders.node_object(node.name, gpus=2) for node in nodes)
    )


def test_several_moves_are_proposed_if_no_single_move_helps() -> None:
    manifest, snapshot = split()
    found = reasons.explain(manifest, snapshot)
    assert not {"move", "end"} & {change.kind for change in found.changes}
    answer = reasons.with_moves(found, manifest, snapshot, clusters.NONE)
    assert [change.sentence for change in answer.changes if change not in found.changes] == [
        "after 2 moves, which `kubectl gpushare defrag waits -n default` plans"
    ]
    manifest, snapshot = split(fixed=True)
    assert reasons.with_moves(found, manifest, snapshot, clusters.NONE) == found


def test_large_cluster_leaves_several_moves_to_defrag(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, snapshot = split()
    found = reasons.explain(manifest, snapshot)
    monkeypatch.setattr(reasons, "MAX_PLANNED_GPUS", 3)
    assert reasons.with_moves(found, manifest, snapshot, clusters.NONE) == found


def test_why_proposes_what_defrag_plans(plugin: Plugin, tmp_path: Path) -> None:
    _, snapshot = split()
    path = tmp_path / "cluster.json"
    nodes = [{**node, "kind": "Node", "apiVersion": "v1"} for node in snapshot.node_objects or ()]
    pods = [{**pod, "kind": "Pod", "apiVersion": "v1"} for pod in snapshot.pods or ()]
    path.write_text(json.dumps({"kind": "List", "items": [*map(codec.to_document, snapshot.nodes), *nodes, *pods]}))
    ended = plugin("why", "waits", "--from", path)
    assert ended.code == 0, ended.err
    assert "after 2 moves, which `kubectl gpushare defrag waits -n default` plans: on n0/0,1" in " ".join(
        ended.out.split()
    )
    planned = plugin("defrag", "waits", "-n", "default", "--from", path)
    assert (planned.code, planned.err) == (0, "")


def test_smallest_pod_in_the_way_is_the_last_remedy() -> None:
    answer = why(waits(request="1"), held="1", memory="80Gi")
    assert [(change.kind, change.sentence, change.gpus) for change in answer.changes] == [
        ("end", "if default/n0-0 ended", "n0/0")
    ]


def test_cpu_request_above_every_node_is_named() -> None:
    manifest = waits(request="0.1")
    manifest["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "64"
    assert "n0 has 8 CPUs in total, 64 are requested" in misses(why(manifest))
