from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings

from gpushare import errors, ledger, placement, request, resizing
from gpushare.allocation import ALL_STEPS, GivenShare, PodRef
from gpushare.gpunode import Gpu, GpuNode, Resize
from gpushare.request import Request
from tests import builders
from tests.builders import GIB
from tests.gpushare.laws import strategies


def node(*others: Any, gib: int = 8, request_percent: int = 50) -> GpuNode:
    """Return a node with one GPU of 80Gi, on which a1 has a share next to `others`."""
    gpunode = ledger.reserve(
        builders.node(gpus=1), builders.allocation("a1", request=request_percent, memory_gib=gib, uid="u1")
    )
    for other in others:
        gpunode = ledger.reserve(gpunode, other)
    return gpunode


def wish(gpunode: GpuNode, **annotations: str) -> resizing.Shares:
    return resizing.asked(request.parse(builders.pod(**annotations)), gpunode.allocations[0], gpunode)


def told(gpunode: GpuNode, gib: float, used: float = 0, share: int = 0) -> GpuNode:
    """Return the node with the agent's report on a1."""
    word = Resize("a1", share, int(gib * GIB), int(used * GIB))
    return dataclasses.replace(gpunode, resizes=(word,))


def share(gpunode: GpuNode, index: int = 0) -> GivenShare:
    return gpunode.allocations[0].shares[index]


def test_growth_is_written_at_once_if_there_is_room() -> None:
    gpunode = node(builders.allocation("b", request=30, memory_gib=30))
    step = resizing.step(gpunode, "a1", wish(gpunode, request="0.7", limit="0.8", memory="50Gi"))
    assert share(step.node) == GivenShare(("main",), ("GPU-node-a-0",), 70, 80, 50 * GIB)
    assert step.waits_for == ""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"request": "0.5", "memory": "9Gi"}, "node-a/0 has 0 of memory free, 1Gi more are requested"),
        ({"request": "0.9", "memory": "8Gi"}, "node-a/0 has 0.2 of its compute free, 0.4 more is requested"),
        (
            {"request": "1", "memory": "100Gi"},
            "node-a/0 has 0.2 of its compute free, 0.5 more is requested; node-a/0 has 0 of memory free, 92Gi more are requested",
        ),
        ({"request": "0.9", "memory": "4Gi"}, "node-a/0 has 0.2 of its compute free, 0.4 more is requested"),
    ],
)
def test_growth_without_room_does_not_begin_and_gives_numbers(asked: dict[str, str], said: str) -> None:
    gpunode = node(builders.allocation("b", request=30, memory_gib=72))
    step = resizing.step(gpunode, "a1", wish(gpunode, **asked))
    assert step == resizing.ResizeStep(gpunode, said, resizing.ResizeCause.ROOM)
    assert step.node is gpunode


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (builders.gpu(healthy=False, health_reason="XID 79"), "node-a/0 is unhealthy: XID 79"),
        (builders.gpu(closed="its agent left"), "node-a/0 is on a node that takes no new pods: its agent left"),
    ],
)
def test_nothing_grows_on_a_closed_gpu(gpu: Gpu, said: str) -> None:
    sick = dataclasses.replace(node(), gpus=(gpu,))
    assert resizing.step(sick, "a1", wish(sick, memory="9Gi", request="0.5")).waits_for == said
    assert share(resizing.step(sick, "a1", wish(sick, memory="8Gi", request="0.4")).node).request_percent == 40


def test_shares_used_in_turn_grow_within_the_larger_one() -> None:
    asked = request.parse(builders.in_turn(warm="0.8", main="0.4"))
    placed = placement.place(builders.views(builders.node(gpus=1)), asked)
    assert isinstance(placed, placement.Placement)
    entry = placed.allocation(asked, allocation_id="a1", pod=PodRef("default", "p", "u"), reserved_until=None)
    gpunode = ledger.reserve(builders.node(gpus=1), entry)
    gpunode = ledger.reserve(gpunode, builders.allocation("b", request=20, memory_gib=16))
    wanted = resizing.asked(request.parse(builders.in_turn(warm="0.8", main="0.8")), entry, gpunode)
    step = resizing.step(gpunode, "a1", wanted)
    assert (step.waits_for, ledger.held(step.node.allocations[0], "GPU-node-a-0")) == ("", (80, 64 * GIB))
    wanted = resizing.asked(request.parse(builders.in_turn(warm="0.8", main="0.9")), entry, gpunode)
    assert resizing.step(gpunode, "a1", wanted).waits_for.startswith("node-a/0 has 0 of its compute free, 0.1 more")


def test_steps_dropped_by_another_release_are_restored() -> None:
    asked = request.parse(builders.in_turn(warm="0.8", main="0.7"))
    placed = placement.place(builders.views(builders.node(gpus=1)), asked)
    assert isinstance(placed, placement.Placement)
    entry = placed.allocation(asked, allocation_id="a1", pod=PodRef("default", "p", "u"), reserved_until=None)
    dropped = dataclasses.replace(
        entry, shares=tuple(dataclasses.replace(share, steps=ALL_STEPS) for share in entry.shares)
    )
    gpunode = dataclasses.replace(builders.node(gpus=1), allocations=(dropped,))
    assert ledger.violations(gpunode)
    step = resizing.step(gpunode, "a1", resizing.asked(asked, dropped, gpunode))
    assert (step.node.allocations, step.waits_for, ledger.violations(step.node)) == ((entry,), "", [])


def test_memory_counts_until_the_agent_enforces_the_smaller_limit() -> None:
    gpunode = node()
    less = wish(gpunode, request="0.5", memory="4Gi")
    step = resizing.step(gpunode, "a1", less)
    assert (share(step.node).memory_bytes, share(step.node).shrink_to_bytes) == (8 * GIB, 4 * GIB)
    assert step.waits_for == "the agent on node-a does not enforce 4Gi yet"
    refused = told(step.node, 8, used=5.2)
    assert resizing.step(refused, "a1", less) == resizing.ResizeStep(
        refused, "it uses 5.2Gi, more than the requested 4Gi", resizing.ResizeCause.USE
    )
    done = resizing.step(told(refused, 4, used=3), "a1", less)
    assert (share(done.node).memory_bytes, share(done.node).shrink_to_bytes) == (4 * GIB, None)
    assert done.waits_for == ""


def test_cancelled_resize_leaves_no_trace() -> None:
    gpunode = node()
    shrinking = resizing.step(gpunode, "a1", wish(gpunode, request="0.5", memory="4Gi")).node
    for word in (shrinking, told(shrinking, 8, used=5), told(shrinking, 4)):
        step = resizing.step(word, "a1", wish(gpunode, request="0.5", memory="8Gi"))
        assert step.node.allocations == gpunode.allocations
        assert step.waits_for == ""


def test_report_on_an_earlier_shrink_is_not_taken_for_the_next() -> None:
    gpunode = told(node(), 4)  # an agent's report on a shrink that has been cancelled since
    less = wish(gpunode, request="0.5", memory="4Gi")
    step = resizing.step(gpunode, "a1", less)
    assert share(step.node).shrink_to_bytes is None
    assert step.waits_for == "the agent on node-a does not enforce 4Gi yet"
    assert share(resizing.step(told(gpunode, 8), "a1", less).node).shrink_to_bytes == 4 * GIB


def test_new_resize_replaces_a_pending_shrink() -> None:
    start = node()
    shrinking = resizing.step(start, "a1", wish(start, request="0.5", memory="4Gi")).node
    refused = told(shrinking, 8, used=5)
    assert share(resizing.step(refused, "a1", wish(start, request="0.5", memory="6Gi")).node).shrink_to_bytes == 6 * GIB
    held = told(shrinking, 4)
    lower = resizing.step(held, "a1", wish(start, request="0.5", memory="2Gi")).node
    assert (share(lower).memory_bytes, share(lower).shrink_to_bytes) == (4 * GIB, 2 * GIB)


def two_containers() -> GpuNode:
    entry = dataclasses.replace(
        builders.allocation("a1", uid="u1"),
        shares=tuple(GivenShare((name,), ("GPU-node-a-0",), 50, 100, 40 * GIB) for name in ("main", "side")),
    )
    return ledger.reserve(builders.node(gpus=1), entry)


def swapped(memory: dict[str, str]) -> Any:
    manifest = builders.pod(containers=tuple(memory))
    for name, amount in memory.items():
        manifest["metadata"]["annotations"] |= {
            f"gpushare.io/request.{name}": "0.5",
            f"gpushare.io/memory.{name}": amount,
        }
    return manifest


def test_container_grows_into_what_its_pod_gives_up_in_one_write() -> None:
    gpunode = two_containers()
    manifest = swapped({"main": "60Gi", "side": "20Gi"})
    more = resizing.asked(request.parse(manifest), gpunode.allocations[0], gpunode)
    first = resizing.step(gpunode, "a1", more)
    assert [(share.memory_bytes, share.shrink_to_bytes) for share in first.node.allocations[0].shares] == [
        (40 * GIB, None),
        (40 * GIB, 20 * GIB),
    ]
    done = resizing.step(told(first.node, 20, share=1), "a1", more)
    assert done.node.allocations[0].shares == more
    assert done.waits_for == ""


def test_changing_containers_or_gpu_count_is_rejected() -> None:
    gpunode = node()
    manifest = builders.pod(containers=("main", "side"), container="main,side", request="0.5")
    with pytest.raises(
        errors.LedgerError,
        match=r"request shares of 1 GPU for main, side, but it has shares of 1 GPU for main: that cannot change",
    ):
        resizing.asked(request.parse(manifest), gpunode.allocations[0], gpunode)
    with pytest.raises(errors.LedgerError, match="request shares of 2 GPUs for main"):
        wish(gpunode, request="0.5", gpus="2")


def test_missing_gpu_is_named() -> None:
    gpunode = dataclasses.replace(node(), gpus=())
    with pytest.raises(errors.LedgerError, match="node-a no longer has GPU GPU-node-a-0"):
        wish(gpunode, request="0.5")


def test_step_all_follows_the_given_order() -> None:
    gpunode = node(builders.allocation("b", request=30, memory_gib=8, uid="u2"))
    more, some = (request.parse(builders.pod(request=percent, memory="8Gi")) for percent in ("0.7", "0.5"))
    first = resizing.step_all(gpunode, [("a1", more), ("b", some), ("gone", more)])
    assert [entry.shares[0].request_percent for entry in first.allocations] == [70, 30]
    second = resizing.step_all(gpunode, [("b", some), ("a1", more)])
    assert [entry.shares[0].request_percent for entry in second.allocations] == [50, 50]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(strategies.gpu_nodes("node-a"), strategies.requests())
def test_given_shares_equal_the_request_despite_rounding(empty: GpuNode, asked: Request) -> None:
    """A pod with unchanged annotations never causes a write."""
    gpunode = dataclasses.replace(empty, allocations=(), resizes=())
    placed = placement.place([placement.NodeView.from_node(gpunode)], asked)
    if not isinstance(placed, placement.Placement):
        return
    gpunode = ledger.reserve(
        gpunode, placed.allocation(asked, allocation_id="a1", pod=PodRef("default", "p", "u"), reserved_until=None)
    )
    step = resizing.step(gpunode, "a1", resizing.asked(asked, gpunode.allocations[0], gpunode))
    assert step.node is gpunode
    assert step == resizing.ResizeStep(gpunode)
