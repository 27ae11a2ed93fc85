"""What keeps a pod waiting is told by the GPUs themselves, and what would help is tried: on the pod, on the nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpushare import contract
from gpushare.defragmentation.plan import DefragPlan, DefragStep
from gpushare.fragmentation import Fragmentation
from gpushare.gpu import Mode
from gpushare.gpunode import GpuNode
from gpushare.refusal import Refusal
from gpushare.whatif.world import RequestingPod
from kubectl_gpushare.output.page import Field
from kubectl_gpushare.planning import reasons
from kubectl_gpushare.planning.reasons import Reasons
from kubectl_gpushare.source.snapshot import Snapshot
from kubectl_gpushare.views import defrag
from tests import builders

FREE = builders.node("node-a", gpus=4)


def machine(*, percent: int = 400, unschedulable: bool = False, **more: Any) -> dict[str, Any]:
    offered = {**builders.offered(4), contract.RESOURCE_PERCENT: str(percent)}
    resources = offered if percent else dict.fromkeys(offered, "0")
    return {
        "metadata": {"name": "node-a", "labels": {contract.HOSTNAME_LABEL: "node-a"}},
        "spec": {"unschedulable": unschedulable, **more},
        "status": {
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110", **resources},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def waits(spec: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    """A pod as the API server has it: the webhook has written the resources that it asks for."""
    manifest = builders.pod("waits", **annotations)
    resources = {"requests": {contract.RESOURCE_PERCENT: "5"}, "limits": {contract.RESOURCE_PERCENT: "5"}}
    manifest["spec"]["containers"][0]["resources"] = resources
    manifest["spec"] |= {"schedulingGates": [{"name": contract.SCHEDULING_GATE}], **(spec or {})}
    return manifest


def full(percent: int = 100) -> tuple[GpuNode, tuple[dict[str, Any], ...]]:
    """All compute of four GPUs is given away, and half the memory; the pods that have it."""
    held = tuple(
        builders.allocation(
            f"id-{index}", f"GPU-node-a-{index}", request=percent, memory_gib=40, pod_name=f"pod-{index}"
        )
        for index in range(4)
    )
    pods = []
    for index in range(4):
        one = builders.pod(f"pod-{index}", request=str(percent / 100), memory="40Gi")
        one["metadata"]["annotations"] |= {contract.NODE: "node-a", contract.ALLOCATION: f"id-{index}"}
        pods.append({**one, "spec": {**one["spec"], "nodeName": "node-a"}})
    return dataclasses.replace(FREE, allocations=held), tuple(pods)


def why(manifest: dict[str, Any], node: GpuNode = FREE, pods: Any = (), **more: Any) -> Reasons:
    return reasons.of(manifest, Snapshot((node,), (*pods, manifest), machines=(machine(**more),)))


def said(told: Reasons) -> str:
    assert isinstance(told.refusal, Refusal)
    return str(told.refusal)


def test_where_the_cluster_is_full_each_gpu_says_so_and_idle_compute_would_do() -> None:
    told = why(waits(request="0.05", memory="1Gi"), *full())
    assert "4 with too little compute free; nearest: node-a/0 has 0 of its compute free" in said(told)
    assert told.refusal is not None
    assert [(miss.gpu_index, miss.rule) for miss in told.refusal.rejected] == [(index, "compute") for index in range(4)]
    changes = {change.kind: change.sentence for change in told.changes}
    assert changes["request"] == 'with gpushare.io/request "0" instead of "0.05"'


def test_of_gpus_of_another_mode_the_mode_is_told() -> None:
    exclusive = tuple(dataclasses.replace(card, mode=Mode.EXCLUSIVE) for card in FREE.gpus)
    told = why(waits(request="0.05", memory="1Gi"), dataclasses.replace(FREE, gpus=exclusive), percent=0)
    assert "4 not shared by annotation; nearest: node-a/0 is in mode exclusive" in said(told)
    told = why(waits(memory="1Gi"), dataclasses.replace(FREE, gpus=exclusive), percent=0)
    assert "4 not shared by annotation" in said(told)


def test_of_a_node_whose_agent_is_away_that_is_told_and_would_help() -> None:
    told = why(waits(request="0.05", memory="1Gi"), percent=0)
    assert "nearest: node-a has free GPUs and no agent that runs: its kubelet offers no gpushare.io/gpu-" in said(told)
    assert [change.sentence for change in told.changes] == ["if the agent of node-a ran"]


@pytest.mark.parametrize(
    ("spec", "more", "reason", "change"),
    [
        ({}, {"unschedulable": True}, "node-a is cordoned", "if the node node-a were uncordoned"),
        (
            {"nodeSelector": {"disk": "ssd"}},
            {},
            "node-a lacks the label disk=ssd of the pod's nodeSelector",
            "without disk=ssd in its nodeSelector",
        ),
        (
            {},
            {"taints": [{"key": "team", "value": "red", "effect": "NoSchedule"}]},
            "node-a has the taint team=red:NoSchedule, which the pod does not tolerate",
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
            "node-a does not match the pod's node affinity",
            "without its required nodeAffinity",
        ),
    ],
)
def test_what_keeps_it_from_a_node_is_named_and_lifted(
    spec: dict[str, Any], more: dict[str, Any], reason: str, change: str
) -> None:
    told = why(waits(spec, request="0.05", memory="1Gi"), **more)
    assert f"nearest: {reason}" in said(told)
    assert [change.sentence for change in told.changes] == [change]


def test_less_memory_is_tried_on_a_pod_that_has_been_stored() -> None:
    told = why(waits(request="0.05", memory="50Gi"), *full(50))
    assert "4 with too little memory free" in said(told)
    changes = {change.kind: change.sentence for change in told.changes}
    assert changes["memory"] == 'with gpushare.io/memory "40Gi" instead of "50Gi"'


def test_a_hundred_pods_that_wait_for_one_reason_are_one_line() -> None:
    manifest = waits(request="0.05", memory="1Gi")
    steps = tuple(
        DefragStep(f"ml/pod-{number}", RequestingPod.of(manifest), "", reason="no GPU fits") for number in range(100)
    )
    nothing = Fragmentation(0, 0, 0, 0)
    page = defrag.page(
        DefragPlan((*steps, DefragStep("ml/other", steps[0].asked, "", reason="other")), nothing, nothing, ()), ()
    )
    told = [entry.values for entry in page if isinstance(entry, Field) and entry.key == "No Way For"]
    assert told == [("ml/pod-0, ml/pod-1, ml/pod-2 and 97 more: no GPU fits", "ml/other: other")]
