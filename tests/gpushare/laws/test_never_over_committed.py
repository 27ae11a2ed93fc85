"""No sequence of placements overcommits a GPU or breaks a rule."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import ledger, placement
from gpushare.allocation import PodRef
from gpushare.gpunode import Mode
from gpushare.placement import NodeView, Placement
from gpushare.refusal import Refusal
from gpushare.request import Request
from tests.gpushare.laws import strategies

pytestmark = pytest.mark.slow

empty_nodes = st.tuples(strategies.gpu_nodes("node-a"), strategies.gpu_nodes("node-b")).map(
    lambda nodes: {node.name: NodeView.from_node(dataclasses.replace(node, allocations=())) for node in nodes}
)


@given(empty_nodes, st.lists(strategies.requests() | st.integers(0, 20), max_size=25))
def test_placements_and_releases_never_overcommit(views: dict[str, NodeView], steps: list[Request | int]) -> None:
    placed: list[tuple[str, str]] = []
    for number, step in enumerate(steps):
        if isinstance(step, int):
            if placed:
                name, identity = placed.pop(step % len(placed))
                views[name] = NodeView.from_node(ledger.release(views[name].node, [identity]))
            continue
        answer = placement.place(views.values(), step)
        if isinstance(answer, Refusal):
            assert answer.reason.startswith("no GPU fits ")
            assert answer.rejected
            continue
        check_rules(views[answer.node], step, answer)
        entry = answer.allocation(step, allocation_id=f"a{number}", pod=PodRef("default"), reserved_until=None)
        views[answer.node] = NodeView.from_node(ledger.reserve(views[answer.node].node, entry))
        placed.append((answer.node, entry.id))
        assert not ledger.violations(views[answer.node].node)
    for name, identity in placed:
        views[name] = NodeView.from_node(ledger.release(views[name].node, [identity]))
    assert not any(view.node.allocations for view in views.values())


def check_rules(view: NodeView, request: Request, answer: Placement) -> None:
    gpus = view.node.gpu_by_uuid()
    for demand in request.demands:
        uuids = [uuid for share in answer.shares if share.containers == demand.containers for uuid in share.gpu_uuids]
        assert len(uuids) == len(set(uuids)) == demand.gpus
    for share in answer.shares:
        for uuid in share.gpu_uuids:
            assert gpus[uuid].healthy
            assert gpus[uuid].mode is Mode.FRACTIONAL
            holders = view.used[uuid].holders
            assert all(holder.labels.exclusion == request.constraints.exclusion for holder in holders)
            if request.constraints.anti_affinity:
                assert all(holder.labels.anti_affinity != request.constraints.anti_affinity for holder in holders)
            if request.constraints.affinity and holders:
                assert any(holder.labels.affinity == request.constraints.affinity for holder in holders)


@given(empty_nodes, strategies.requests())
def test_refusal_on_an_empty_cluster_has_a_lasting_reason(views: dict[str, NodeView], request: Request) -> None:
    answer = placement.place(views.values(), request)
    if isinstance(answer, Refusal):
        assert (
            not {"exclusion", "affinity", "anti-affinity"} & {entry.rule for entry in answer.rejected}
            or len(request.demands) > 1
        )
