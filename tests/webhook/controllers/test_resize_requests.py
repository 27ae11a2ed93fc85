"""Which pods request another amount, in which order they get it, and what the others keep."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract, errors, ledger, placement, resizing
from gpushare import request as requests
from gpushare.allocation import ALL_STEPS, Allocation, PodRef
from gpushare.gpunode import GpuNode
from tests import builders
from tests.builders import GIB
from tests.gpushare.laws import strategies
from webhook.controllers.resize_requests import ResizeRequest, ResizeRequests, outcome, turn
from webhook.pods.stored_pod import Pod

CREATED = "2026-01-01T00:00:00Z"


def pod(name: str, *, created: str = CREATED, priority: int = 0, version: str = "1", **asked: str) -> dict[str, Any]:
    made = builders.pod(name, **{"allocation": f"id-{name}", **asked})
    made["metadata"].update(uid=f"u-{name}", creationTimestamp=created, resourceVersion=version)
    made["spec"] |= {"priority": priority, "nodeName": "node-a"}
    return made


def holding(name: str, request: int, gib: int) -> Allocation:
    return builders.allocation(f"id-{name}", request=request, memory_gib=gib, pod_name=name, uid=f"u-{name}")


def node(*entries: Allocation) -> GpuNode:
    gpunode = builders.node(gpus=1)
    for entry in entries:
        gpunode = ledger.reserve(gpunode, entry)
    return gpunode


def find(gpunode: GpuNode, *pods: dict[str, Any]) -> list[ResizeRequest]:
    return ResizeRequests().find([gpunode], map(Pod.from_manifest, pods))


def held(gpunode: GpuNode) -> dict[str, tuple[int, int]]:
    return {
        entry.pod.name: (entry.shares[0].request_percent, entry.shares[0].memory_bytes // GIB)
        for entry in gpunode.allocations
    }


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(strategies.gpu_nodes("node-a"))
def test_unchanged_pod_has_no_resize_request(empty: GpuNode) -> None:
    gpunode = dataclasses.replace(empty, allocations=(), resizes=())
    for memory in ({}, {"memory": "33%"}, {"memory": "1.5Gi"}, {"memory": "7%", "gpus": "2"}):
        manifest = pod("one", request="0.33", **memory)
        request = requests.parse(manifest)
        placed = placement.place([placement.NodeView.from_node(gpunode)], request)
        if isinstance(placed, placement.Placement):
            entry = placed.allocation(
                request, allocation_id="id-one", pod=PodRef("default", "one", "u-one"), reserved_until=None
            )
            assert find(ledger.reserve(gpunode, entry), manifest) == []


def test_pods_without_a_share_have_no_resize_request() -> None:
    gpunode = node(holding("one", 50, 8))
    asked = {"request": "0.6", "memory": "8Gi"}
    assert len(find(gpunode, pod("one", **asked))) == 1
    leaving, gated = pod("one", **asked), pod("one", **asked)
    leaving["metadata"]["deletionTimestamp"] = CREATED
    gated["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
    ended = {**pod("one", **asked), "status": {"phase": "Succeeded"}}
    others = pod("one", **asked, allocation="id-of-another")
    for manifest in (leaving, gated, ended, others, pod("two", **asked)):
        assert find(gpunode, manifest) == []
    reserved = node(builders.allocation("id-one", pod_name="one", reserved_until=60.0))
    assert find(reserved, pod("one", **asked)) == []


def test_satisfied_pods_are_not_checked_until_they_change() -> None:
    gpunode, resize_requests = node(holding("one", 50, 8)), ResizeRequests()
    assert resize_requests.find([gpunode], [Pod.from_manifest(pod("one", request="0.5", memory="8Gi"))]) == []
    same_version = pod("one", request="0.7", memory="8Gi")
    assert resize_requests.find([gpunode], [Pod.from_manifest(same_version)]) == []
    assert (
        len(resize_requests.find([gpunode], [Pod.from_manifest(pod("one", version="2", request="0.7", memory="8Gi"))]))
        == 1
    )
    assert (
        resize_requests.find([gpunode], [Pod.from_manifest(pod("one", version="3", request="0.5", memory="8Gi"))]) == []
    )
    smaller = node(holding("one", 40, 8))
    assert (
        len(resize_requests.find([smaller], [Pod.from_manifest(pod("one", version="3", request="0.5", memory="8Gi"))]))
        == 1
    )


def test_shares_grow_by_priority_and_then_age() -> None:
    gpunode = node(holding("old", 10, 8), holding("young", 10, 8), holding("first", 10, 8))
    asked = {"request": "0.4", "memory": "8Gi"}
    resize_requests = find(
        gpunode,
        pod("young", created="2026-01-02T00:00:00Z", **asked),
        pod("old", **asked),
        pod("first", created="2026-01-03T00:00:00Z", priority=5, **asked),
    )
    assert [resize_request.entry.pod.name for resize_request in resize_requests] == ["first", "old", "young"]
    after = turn(gpunode, resize_requests, {})
    assert held(after) == {"first": (40, 8), "old": (40, 8), "young": (10, 8)}
    assert turn(after, resize_requests, {}) is after
    assert outcome(after, resize_requests[2]) == (
        after.allocations[1].shares,
        "is not resized yet: node-a/0 has 0.1 of its compute free, 0.3 more is requested",
    )
    assert outcome(after, resize_requests[0]) == (after.allocations[2].shares, "")


def test_released_amount_is_available_in_the_same_turn() -> None:
    gpunode = node(holding("large", 60, 8), holding("small", 40, 8))
    resize_requests = find(
        gpunode,
        pod("small", priority=1, request="0.9", memory="8Gi"),
        pod("large", request="0.1", memory="8Gi"),
    )
    assert held(turn(gpunode, resize_requests, {})) == {"large": (10, 8), "small": (90, 8)}


def test_freed_capacity_goes_to_backfill_reservations_first() -> None:
    hold = builders.allocation(contract.BACKFILL_PREFIX + "1", request=0, memory_gib=0, pod_name="gated", uid="u-gated")
    gpunode = node(holding("large", 80, 8), holding("small", 20, 8), hold)
    gated = {"u-gated": requests.parse(builders.pod("gated", request="0.5", memory="8Gi"))}
    asked = {"request": "0.6", "memory": "8Gi"}
    resize_requests = find(gpunode, pod("small", **asked), pod("large", request="0.3", memory="8Gi"))
    after = turn(gpunode, resize_requests, gated)
    assert held(after) == {"large": (30, 8), "small": (20, 8), "gated": (50, 8)}
    assert outcome(after, resize_requests[1]) == (
        after.allocations[1].shares,
        "is not resized yet: node-a/0 has 0 of its compute free, 0.4 more is requested",
    )


def test_invalid_resize_is_reported_and_changes_nothing() -> None:
    gpunode = node(holding("one", 50, 8))
    (resize_request,) = find(gpunode, pod("one", request="0.6", limit="0.5", memory="8Gi"))
    assert turn(gpunode, [resize_request], {}) is gpunode
    assert outcome(gpunode, resize_request) == (
        gpunode.allocations[0].shares,
        'is not resized yet: gpushare.io/limit "0.5" is less than the request: write 0.6 to 1, or omit it for 1',
    )
    (resize_request,) = find(gpunode, pod("one", request="0.6", **{"request.side": "0.1"}))
    said = outcome(gpunode, resize_request)
    assert said is not None
    assert said[1].startswith('is not resized yet: gpushare.io/request.side "0.1" names the container "side"')


def test_missing_gpu_affects_only_pods_that_wait_already() -> None:
    gpunode = node(holding("one", 50, 8))
    begun = turn(gpunode, find(gpunode, pod("one", request="0.5", memory="4Gi")), {})
    gone = dataclasses.replace(begun, gpus=())
    assert find(gone, pod("one", request="0.5", memory="8Gi")) == []
    (waits,) = find(gone, pod("one", request="0.5", memory="4Gi", held="[]"))
    assert outcome(gone, waits) == (
        gone.allocations[0].shares,
        "is not resized yet: node-a no longer has GPU GPU-node-a-0",
    )
    after = turn(gone, [waits], {})
    assert after.allocations == gpunode.allocations, "what was begun is taken back"
    assert turn(after, [waits], {}) is after


def test_satisfied_pod_with_leftover_annotations_is_found() -> None:
    gpunode = node(holding("one", 50, 8))
    (resize_request,) = find(gpunode, pod("one", request="0.5", memory="8Gi", reason="is not resized yet: no room"))
    assert outcome(gpunode, resize_request) == (gpunode.allocations[0].shares, "")
    assert outcome(builders.node(), resize_request) is None


def test_a_share_that_shrinks_waits_for_the_agent() -> None:
    gpunode = node(holding("one", 50, 8))
    (resize_request,) = find(gpunode, pod("one", request="0.5", memory="4Gi"))
    assert outcome(gpunode, resize_request) is None, "nothing was begun yet"
    after = turn(gpunode, [resize_request], {})
    assert after.allocations[0].shares[0].shrink_to_bytes == 4 * GIB
    assert outcome(after, resize_request) == (
        after.allocations[0].shares,
        "is not resized yet: the agent on node-a does not enforce 4Gi yet",
    )
    assert resizing.amounts(after.allocations[0].shares) == "0.5 GPU with 8Gi"


@pytest.mark.parametrize("less", [{"request": "0.2"}, {"memory": "4Gi"}, {"request": "0.2", "memory": "20Gi"}])
def test_nothing_is_given_up_before_the_pod_is_bound(less: dict[str, str]) -> None:
    """The scheduler needs room for the pod as it was created, and the agent does not offer the difference before."""
    gpunode = node(holding("one", 50, 8))
    waits = pod("one", **{"request": "0.5", "memory": "8Gi", **less})
    del waits["spec"]["nodeName"]
    (resize_request,) = find(gpunode, waits)
    assert turn(gpunode, [resize_request], {}) is gpunode
    assert outcome(gpunode, resize_request) == (
        gpunode.allocations[0].shares,
        "is not resized yet: it is not bound to its node yet, where the scheduler still needs room for its original request",
    )
    bound = find(gpunode, pod("one", version="2", **{"request": "0.5", "memory": "8Gi", **less}))
    assert turn(gpunode, bound, {}) is not gpunode


def test_share_grows_before_its_pod_is_bound() -> None:
    gpunode = node(holding("one", 50, 8))
    waits = pod("one", request="0.6", memory="9Gi")
    del waits["spec"]["nodeName"]
    assert held(turn(gpunode, find(gpunode, waits), {})) == {"one": (60, 9)}


AMOUNTS = st.tuples(st.sampled_from([0, 10, 25, 40, 60, 90]), st.sampled_from([1, 8, 20, 40, 80]))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(AMOUNTS, AMOUNTS, st.booleans()), min_size=1, max_size=4))
def test_resize_turns_respect_ledger_and_backfill_reservations(
    pods: list[tuple[tuple[int, int], tuple[int, int], bool]],
) -> None:
    gpunode, waiting, asked = builders.node(gpus=1), [], {}
    for number, (has, wants, is_gated) in enumerate(pods):
        name, identity = f"p{number}", f"id-p{number}"
        if is_gated:
            identity = contract.BACKFILL_PREFIX + name
            asked[f"u-{name}"] = requests.parse(builders.pod(request=f"{has[0]}%", memory=f"{has[1]}Gi"))
        entry = builders.allocation(identity, request=has[0], memory_gib=has[1], pod_name=name, uid=f"u-{name}")
        with contextlib.suppress(errors.LedgerError):
            gpunode = ledger.reserve(gpunode, entry)
            waiting.append(pod(name, request=f"{wants[0]}%", memory=f"{wants[1]}Gi"))
    resize_requests = find(gpunode, *waiting)
    after = turn(gpunode, resize_requests, asked)
    assert ledger.violations(after) == []
    assert turn(after, find(after, *waiting), asked) is after, "a second turn without news does nothing"
    before = {entry.id: entry for entry in gpunode.allocations}
    for entry in after.allocations:
        (was,), (now,) = before[entry.id].shares, entry.shares
        assert now.memory_bytes >= was.memory_bytes, "memory was taken before the agent said that it can be"
        if entry.is_backfill_reservation:
            assert now.request_percent >= was.request_percent


def test_started_shrink_is_undone_by_an_invalid_request() -> None:
    gpunode = node(holding("one", 50, 8))
    begun = turn(gpunode, find(gpunode, pod("one", request="0.5", memory="4Gi")), {})
    nonsense = find(begun, pod("one", request="0.6", limit="0.5", memory="4Gi"))
    assert turn(begun, nonsense, {}) == gpunode
    other = find(begun, pod("one", request="0.5", memory="4Gi", gpus="2"))
    assert turn(begun, other, {}) == gpunode
    assert "that cannot change on an existing pod" in other[0].problem


def test_resize_dropped_by_another_release_is_requested_again() -> None:
    made = builders.in_turn(warm="0.8", main="0.7", allocation="id-a")
    made["metadata"].update(name="a", uid="u-a", creationTimestamp=CREATED, resourceVersion="1")
    made["spec"] |= {"nodeName": "node-a"}
    asked = requests.parse(made)
    placed = placement.place(builders.views(builders.node(gpus=1)), asked)
    assert isinstance(placed, placement.Placement)
    entry = placed.allocation(asked, allocation_id="id-a", pod=PodRef("default", "a", "u-a"), reserved_until=None)
    assert find(node(entry), made) == []
    at_once = tuple(dataclasses.replace(share, steps=ALL_STEPS) for share in entry.shares)
    dropped = dataclasses.replace(builders.node(gpus=1), allocations=(dataclasses.replace(entry, shares=at_once),))
    (resize_request,) = find(dropped, made)
    after = turn(dropped, [resize_request], {})
    assert after.allocations == (entry,)
    assert outcome(after, resize_request) == (entry.shares, "")
