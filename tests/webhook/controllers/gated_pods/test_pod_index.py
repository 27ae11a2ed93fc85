"""The index that is updated pod by pod equals an index of all pods."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract
from tests import builders
from webhook.controllers import queue
from webhook.controllers.gated_pods import waiting_units
from webhook.controllers.gated_pods.waiting_units import PodIndex
from webhook.pods.stored_pod import Pod

pytestmark = pytest.mark.slow

UIDS = ("u0", "u1", "u2", "u3")
UNBOUND = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}


def made(uid: str, group: str, *, gated: bool, placed: bool, leaves: bool, unbound: bool) -> Pod:
    manifest = builders.pod(uid, request="0.5")
    manifest["metadata"].update(uid=uid, creationTimestamp="2026-01-01T00:00:00Z")
    if group:
        manifest["metadata"]["annotations"].update({contract.GROUP: group, contract.GROUP_SIZE: "2"})
    if placed:
        manifest["metadata"]["annotations"][contract.ALLOCATION] = f"a-{uid}"
    if leaves:
        manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}] if gated else []
    return Pod.from_manifest({**manifest, "status": {"phase": "Pending", "conditions": [UNBOUND] if unbound else []}})


PODS = st.builds(
    made,
    st.sampled_from(UIDS),
    st.sampled_from(("", "ring", "star")),
    gated=st.booleans(),
    placed=st.booleans(),
    leaves=st.booleans(),
    unbound=st.booleans(),
)


@given(st.lists(PODS | st.sampled_from(UIDS), max_size=30))
@settings(deadline=None)
def test_law_incremental_index_equals_full_index(steps: list[Any]) -> None:
    index, pods = PodIndex(), dict[str, Pod]()
    for step in steps:
        uid = step if isinstance(step, str) else step.ref.uid
        after = None if isinstance(step, str) else step
        if uid in pods or after is not None:
            index.update(pods.get(uid), after)
        pods.pop(uid, None)
        if after is not None:
            pods[uid] = after
        assert index.waiting == {uid: pod for uid, pod in pods.items() if pod.waits}
        assert index.stuck == {uid: pod for uid, pod in pods.items() if pod.is_stuck}
        arranged = waiting_units.Arranger().arrange(index.waiting, index.members)
        fresh = PodIndex(pods.values())
        everything = waiting_units.Arranger().arrange(fresh.waiting, fresh.members)
        assert {unit.uids for unit in arranged.units} == {unit.uids for unit in everything.units}
        assert {pod.ref.uid for pod, _ in arranged.held_back} == {pod.ref.uid for pod, _ in everything.held_back}
        assert all(index.members.values())


def test_placed_pod_is_reported_once_and_only_while_it_exists() -> None:
    shape = {"group": "", "leaves": False, "unbound": False}
    gated, placed = (made("u0", gated=not is_placed, placed=is_placed, **shape) for is_placed in (False, True))  # type: ignore[arg-type]
    index = PodIndex([gated])
    assert index.newly_placed() == {}
    index.update(gated, placed)
    index.update(placed, dataclasses.replace(placed))
    assert index.newly_placed() == {"u0": queue.order(placed)}
    index.update(placed, dataclasses.replace(placed))
    assert index.newly_placed() == {}
    index.update(None, made("u1", gated=False, placed=True, **shape))  # type: ignore[arg-type]
    index.update(made("u1", gated=False, placed=True, **shape), None)  # type: ignore[arg-type]
    assert index.newly_placed() == {}
