"""Pods that name an allocation of another pod."""

from __future__ import annotations

import dataclasses

import pytest

from gpushare import contract
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from tests import builders
from webhook.controllers import evictor
from webhook.controllers.touched_nodes import Touched
from webhook.pods.stored_pod import Pod


def claiming(name: str, *, allocation: str = "a1", gated: bool = False, **status: str) -> Pod:
    made = builders.pod(name, request="0.5", allocation=allocation, node="node-a")
    made["metadata"]["uid"] = f"u-{name}"
    made["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}] if gated else []
    return Pod.from_manifest({**made, "status": status})


def find(node: GpuNode, *pods: Pod) -> list[tuple[Pod, PodRef]]:
    return evictor.AllocationConflicts().renew(Touched((node,), pods, frozenset({node.name})))


def held_by(uid: str) -> GpuNode:
    entry = builders.allocation("a1", pod_name="first", uid=uid)
    return dataclasses.replace(builders.node(), allocations=(entry,))


def test_second_claimant_gets_an_event_with_the_holder() -> None:
    ((pod, holder),) = find(held_by("u-first"), claiming("first"), claiming("second"))
    assert pod.ref.name == "second"
    assert evictor.explain_conflict(pod, holder).startswith(
        "names the allocation a1, which belongs to default/first: it has no share"
    )


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(claiming("second", allocation="another"), id="another allocation"),
        pytest.param(claiming("second", gated=True), id="waits for its own"),
        pytest.param(claiming("second", phase="Succeeded"), id="has ended"),
    ],
)
def test_pods_that_claim_nothing_cause_no_conflict(one: Pod) -> None:
    assert find(held_by("u-first"), claiming("first"), one) == []


def test_no_conflict_is_reported_before_the_holder_is_known() -> None:
    assert find(held_by(""), claiming("first"), claiming("second")) == []
