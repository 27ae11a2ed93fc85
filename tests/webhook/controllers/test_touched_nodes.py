"""Checking only what has changed finds the same as checking everything, and checks little."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract
from gpushare.allocation import Allocation, PodRef
from gpushare.gpunode import GpuNode
from tests import builders
from tests.webhook.leftovers import left_bytes
from webhook.controllers import due_changes, restore
from webhook.controllers.evictor import AllocationConflicts
from webhook.controllers.resize_requests import ResizeRequests
from webhook.controllers.touched_nodes import FEW, MAX_NODES, Touched, TouchedNodes
from webhook.pods.stored_pod import Pod

NAMES = ("n0", "n1", "n2", "n3")
UIDS = ("u0", "u1", "u2", "u3", "u4")
IDS = ("a0", "a1", "a2", "a3", "a4")


def placed(uid: str, identity: str, node: str, phase: str, *, gated: bool) -> Pod:
    made = builders.counted(builders.pod(uid, request="0.5"))
    made["metadata"].update(uid=uid, resourceVersion="1", creationTimestamp="2026-01-01T00:00:00Z")
    made["metadata"]["annotations"].update({contract.ALLOCATION: identity, contract.NODE: node})
    made["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}] if gated else []
    return Pod.from_manifest({**made, "status": {"phase": phase}})


PODS = st.builds(
    placed,
    st.sampled_from(UIDS),
    st.sampled_from(IDS),
    st.sampled_from((*NAMES, "elsewhere")),
    st.sampled_from(("Pending", "Running", "Succeeded")),
    gated=st.booleans(),
)
ENTRIES = st.builds(
    lambda identity, uid, until, is_backfill_reservation: dataclasses.replace(
        builders.allocation(contract.BACKFILL_PREFIX + identity if is_backfill_reservation else identity, uid=uid),
        pod=PodRef("default", uid, uid),
        reserved_until=None if uid else until,
    ),
    st.sampled_from(IDS),
    st.sampled_from(("", *UIDS)),
    st.sampled_from((50.0, 150.0)),
    st.booleans(),
)
# A node with its new entries, or None if it is deleted; or a pod, or the UID of a deleted one.
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.none() | st.lists(ENTRIES, max_size=3, unique_by=lambda entry: entry.id))
    | PODS
    | st.sampled_from(UIDS),
    max_size=30,
)


class Seen:
    """The results of checking what has changed."""

    def __init__(self, most_nodes: int = MAX_NODES) -> None:
        self.changes, self.known = TouchedNodes(most_nodes), due_changes.DueChangesByNode()
        self.lost: dict[str, list[Pod]] = {}
        self.conflicts, self.resize_requests = AllocationConflicts(), ResizeRequests()
        self.found_conflicts: list[Any] = []
        self.looked_at = 0

    def look_at_all(self, nodes: list[GpuNode], now: float) -> due_changes.DueChanges:
        """Collect until nothing is left."""
        changes = self.look(nodes, now)
        while self.changes.has_more:
            later = self.look(nodes, now)
            ends = [at for at in (changes.next_expiry, later.next_expiry) if at is not None]
            confirm = {**changes.confirm, **later.confirm}
            changes = dataclasses.replace(later, confirm=confirm, next_expiry=min(ends, default=None))
        return changes

    def look(self, nodes: list[GpuNode], now: float) -> due_changes.DueChanges:
        touched = self.changes.collect(nodes, also=self.known.unconfirmed)
        self.looked_at = len(touched.nodes) + len(touched.pods)
        self.lost = {name: pods for name, pods in self.lost.items() if name not in touched.names}
        self.lost.update(restore.lost(touched.nodes, touched.pods))
        self.found_conflicts = self.conflicts.renew(touched)
        for _ in self.resize_requests.search(touched):
            pass
        return self.known.renew(touched.nodes, touched.names, due_changes.find(touched.nodes, touched.pods, now=now))


def in_all(nodes: list[GpuNode], pods: Iterable[Pod]) -> Touched:
    return Touched(tuple(sorted(nodes, key=lambda node: node.name)), tuple(pods), frozenset(NAMES))


def shown(due: due_changes.DueChanges) -> Any:
    lists = (due.release, due.gone, due.lapsed)
    by_id = [sorted((entry.node, entry.allocation.id) for entry in entries) for entries in lists]
    return {name: dict(ids) for name, ids in due.confirm.items()}, by_id, due.next_expiry


@pytest.mark.slow
@given(STEPS, st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30), max_size=3), st.sampled_from((1, 2, 1000)))
@settings(deadline=None)
def test_law_incremental_results_equal_full_results(
    steps: list[Any], looks: set[int], failures: set[int], most_nodes: int
) -> None:
    seen = Seen(most_nodes)
    nodes: dict[str, GpuNode] = {}
    pods: dict[str, Pod] = {}
    for number, step in enumerate([*steps, "nobody"]):
        if isinstance(step, Pod):
            uid = step.ref.uid
            step = dataclasses.replace(step, version=str(number))
            seen.changes.update_pod(pods.get(uid), step)
            pods[uid] = step
        elif isinstance(step, str):
            before = pods.pop(step, None)
            if before is not None:
                seen.changes.update_pod(before, None)
        elif step[1] is None:
            nodes.pop(step[0], None)
        else:
            nodes[step[0]] = dataclasses.replace(builders.node(step[0]), allocations=tuple(step[1]))
        if number in failures:
            seen.changes.collect(list(nodes.values()))
            seen.changes.requeue()  # the round has failed
        if number not in looks and number < len(steps):
            continue  # several changes between two rounds
        now = 100.0 if number % 2 else 10.0
        every = list(nodes.values())
        assert shown(seen.look_at_all(every, now)) == shown(due_changes.find(every, pods.values(), now=now))
        assert {name: sorted(map(str, lost)) for name, lost in seen.lost.items()} == {
            name: sorted(map(str, lost)) for name, lost in restore.lost(every, pods.values()).items()
        }
        assert sorted(map(str, seen.found_conflicts)) == sorted(
            map(str, AllocationConflicts().renew(in_all(every, pods.values())))
        )
        assert list(map(str, seen.resize_requests.all())) == list(map(str, ResizeRequests().find(every, pods.values())))
        there = set(nodes)
        everywhere = restore.orphaned(there, pods.values())
        assert sorted(map(str, restore.orphaned(there, seen.changes.placed_elsewhere(there)))) == sorted(
            map(str, everywhere)
        )


def test_unchanged_nodes_are_not_checked() -> None:
    seen = Seen()
    nodes, held = [], list[Allocation]()
    for number in range(20):
        entry = dataclasses.replace(builders.allocation(f"a{number}"), pod=PodRef("default", "p", f"u{number}"))
        nodes.append(dataclasses.replace(builders.node(f"n{number}"), allocations=(entry,)))
        held.append(entry)
        seen.changes.update_pod(None, placed(f"u{number}", f"a{number}", f"n{number}", "Running", gated=False))
    seen.look(nodes, 0.0)
    assert seen.looked_at == 40
    seen.look(nodes, 0.0)
    assert seen.looked_at == 0
    before = placed("u3", "a3", "n3", "Running", gated=False)
    seen.changes.update_pod(before, placed("u3", "a3", "n3", "Succeeded", gated=False))
    assert [due.allocation for due in seen.look(nodes, 0.0).release] == [held[3]]
    assert seen.looked_at == 2
    assert [due.allocation for due in seen.look(nodes, 0.0).release] == [held[3]]  # until it is written
    assert seen.looked_at == 0


def test_round_on_a_large_cluster_checks_a_bounded_number_of_nodes() -> None:
    seen = Seen(most_nodes=5)
    nodes = [builders.node(f"n{number:02}") for number in range(12)]
    looked_at: list[int] = []
    while seen.changes.has_more or not looked_at:
        seen.look(nodes, 0.0)
        looked_at.append(seen.looked_at)
    assert looked_at == [0, 0, 5, 5, 2]  # indexed first, because ties between nodes must be known
    seen.look(nodes, 0.0)
    assert seen.looked_at == 0


def test_pod_related_to_two_nodes_ties_them_together() -> None:
    """The pod names one node and holds a share on another: only both together show that no share is lost."""
    seen = Seen()
    entry = dataclasses.replace(builders.allocation("a1"), pod=PodRef("default", "p", "u1"))
    there = dataclasses.replace(builders.node("n1"), allocations=(entry,))
    seen.changes.update_pod(None, placed("u1", "a1", "n0", "Running", gated=False))
    nodes = [builders.node("n0"), there]
    seen.look(nodes, 0.0)
    assert seen.looked_at == 3
    nodes[0] = builders.node("n0")  # another object, as after a write
    seen.look(nodes, 0.0)
    assert seen.looked_at == 3
    assert seen.lost == {}
    seen.changes.update_pod(placed("u1", "a1", "n0", "Running", gated=False), None)
    assert [entry.node for entry in seen.look(nodes, 0.0).gone] == ["n1"]


def test_first_pod_to_arrive_gets_the_allocation_it_names() -> None:
    for reverse in (False, True):
        seen = Seen()
        entry = dataclasses.replace(builders.allocation("a1", reserved_until=60.0), pod=PodRef("default", "", ""))
        nodes = [dataclasses.replace(builders.node("n0"), allocations=(entry,))]
        uids = sorted(("u1", "u2"), reverse=reverse)
        for uid in uids:
            seen.changes.update_pod(None, placed(uid, "a1", "n0" if uid == "u2" else "n1", "Running", gated=False))
        assert seen.look(nodes, 0.0).confirm["n0"]["a1"].uid == uids[0]


@pytest.mark.slow
def test_uncollected_changes_are_bounded() -> None:
    """A replica that does not lead never collects; once it leads, it checks everything."""
    seen, nodes = Seen(), [builders.node("n0"), builders.node("n1")]
    seen.look(nodes, 0.0)
    pods = [placed(f"u{number}", f"a{number}", "n0", "Running", gated=False) for number in range(FEW)]

    def come_and_go() -> None:
        for pod in pods:
            seen.changes.update_pod(None, pod)
            seen.changes.update_pod(pod, None)

    come_and_go()  # the last ones are kept, for reservations that they may have left
    assert left_bytes(come_and_go) < 10 * FEW
    seen.look(nodes, 0.0)
    assert seen.looked_at == 2
    seen.look(nodes, 0.0)
    assert seen.looked_at == 0


def test_deleted_pod_is_reported_with_its_node_until_its_share_is_released() -> None:
    touched = TouchedNodes()
    reserved = dataclasses.replace(builders.node(), allocations=(builders.allocation("a1", reserved_until=2e9),))
    pod = placed("u-1", "a1", "node-a", "Pending", gated=False)
    touched.update_pod(None, pod)
    touched.update_pod(pod, None)
    for _ in range(2):  # until the allocation is released
        assert touched.collect([reserved], also=["node-a"]).departed == {"a1": pod}
    assert touched.collect([builders.node()], also=["node-a"]).departed == {}
    assert touched.collect([dataclasses.replace(reserved)], also=["node-a"]).departed == {}
