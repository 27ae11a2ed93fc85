"""The pods that count as stuck, their Events, and the rate of evictions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import contract
from gpushare.pod import Controller
from tests import builders
from webhook.controllers import evictor
from webhook.pods.stored_pod import Pod

OWNER = Controller("ReplicaSet", "trainers", "owner-1")


def pinned(*, reason: str = "Unschedulable", owned: bool = True, **spec: Any) -> dict[str, Any]:
    made = builders.pod(request="0.5", allocation="a1", node="node-a")
    made["metadata"]["uid"] = "u-1"
    if owned:
        reference = {"kind": OWNER.kind, "name": OWNER.name, "uid": OWNER.uid, "controller": True}
        made["metadata"]["ownerReferences"] = [{"kind": "Other", "name": "o", "uid": "o"}, reference]
    made["spec"].update(spec)
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "1 Insufficient cpu."}
    return {**made, "status": {"phase": "Pending", "conditions": [condition]}}


def preempting() -> dict[str, Any]:
    """Return a pod for which the scheduler preempts others, which takes their grace periods."""
    made = pinned()
    return {**made, "status": {**made["status"], "nominatedNodeName": "node-a"}}


def test_placed_pod_that_cannot_be_bound_is_stuck() -> None:
    assert Pod.from_manifest(pinned()).is_stuck
    assert evictor.explain_unbound(Pod.from_manifest(pinned())) == (
        "was placed on node-a, where the scheduler cannot bind it: 1 Insufficient cpu.; it will be evicted at a "
        "limited rate, so that ReplicaSet trainers recreates it"
    )
    alone = Pod.from_manifest(pinned(owned=False))
    assert alone.controller is None
    assert evictor.explain_unbound(alone).endswith("delete and recreate it to have it placed elsewhere")


@pytest.mark.parametrize("kind", ["Job", "Workflow", "ConfigMap"])
def test_pod_is_not_evicted_if_that_harms_its_owner(kind: str) -> None:
    manifest = pinned()
    manifest["metadata"]["ownerReferences"][-1]["kind"] = kind
    stays = Pod.from_manifest(manifest)
    assert not evictor.is_recreated(stays)
    assert evictor.explain_unbound(stays).endswith(
        f"; it is not evicted, because {kind} trainers may count that as a failure or not recreate it: delete the pod "
        "to have it placed elsewhere"
    )


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "ReplicationController", "DaemonSet"])
def test_a_pod_that_is_recreated_without_harm_is_evicted(kind: str) -> None:
    manifest = pinned()
    manifest["metadata"]["ownerReferences"][-1]["kind"] = kind
    assert evictor.is_recreated(Pod.from_manifest(manifest))


@pytest.mark.parametrize(
    "other",
    [
        pinned(nodeName="node-a"),
        pinned(reason="SchedulingGated"),
        pinned(schedulingGates=[{"name": contract.SCHEDULING_GATE}]),
        {**pinned(), "status": {"phase": "Failed"}},
        {**pinned(), "status": {"phase": "Pending"}},
        preempting(),
        builders.pod(request="0.5"),
    ],
)
def test_other_unbound_pods_are_not_stuck(other: dict[str, Any]) -> None:
    assert Pod.from_manifest(other).unschedulable is None


def test_pod_is_overdue_only_if_it_was_stuck_without_interruption() -> None:
    seen = evictor.UnschedulableSince(60.0)
    assert seen.overdue({"u-1": Pod.from_manifest(pinned())}, now=0.0) == ([], 60.0)
    assert seen.overdue({}, now=30.0) == ([], None)
    assert seen.overdue({"u-1": Pod.from_manifest(pinned())}, now=59.0) == ([], 119.0)
    assert len(seen.overdue({"u-1": Pod.from_manifest(pinned())}, now=119.0)[0]) == 1


def test_pauses_between_evictions_of_one_owner_grow() -> None:
    pace, now, pauses = evictor.EvictionRate(), 0.0, []
    for _ in range(8):
        wait_seconds = pace.wait_seconds(OWNER, now=now)
        pauses.append(wait_seconds)
        now += wait_seconds
        pace.evicted(OWNER, now=now)
    assert pauses == [0.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 5)), max_size=200))
def test_law_in_no_minute_are_more_evicted_than_allowed(asked: list[tuple[int, float]]) -> None:
    pace, now, evicted = evictor.EvictionRate(), 0.0, []
    for who, pause in asked:
        now += pause
        owner = Controller("Job", f"job-{who}", f"uid-{who}")
        if pace.wait_seconds(owner, now=now) == 0:
            pace.evicted(owner, now=now)
            evicted.append(now)
    for at in evicted:
        assert len([moment for moment in evicted if at <= moment < at + 60.0]) <= evictor.MAX_PER_MINUTE
