"""A filter's line in the table is all that the engine needs to heed it, and to refuse in its words."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare import placement
from gpushare.gpunode import GpuNode
from gpushare.placement import NodeView, Placement, filters
from gpushare.placement.filters import FilterInput, Verdict
from gpushare.placement.fleet import Fleet
from gpushare.refusal import Refusal
from gpushare.request import Request
from tests.gpushare.laws import strategies

nodes = st.lists(strategies.gpu_nodes("node-a") | strategies.gpu_nodes("node-b"), min_size=1, max_size=4)


def numa(ask: FilterInput) -> Verdict:
    return ("is on NUMA node 1", 4.0) if ask.card.numa_node == 1 else None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes, strategies.requests(), st.booleans())
def test_it_is_heeded_and_told(
    monkeypatch: pytest.MonkeyPatch, found: list[GpuNode], asked: Request, is_first: bool
) -> None:
    one_more = {"numa": (numa, "of the other NUMA node")}
    with monkeypatch.context() as patched:
        rules = filters.RULES
        patched.setattr(filters, "RULES", {**one_more, **rules} if is_first else {**rules, **one_more})
        fleet = Fleet()
        for node in found:
            fleet.update(NodeView.of(node))
        views = sorted(fleet.views(), key=lambda view: view.node.name)
        answer, wanted = fleet.place(asked), placement.place(views, asked)
    assert type(answer) is type(wanted)
    if isinstance(answer, Refusal):
        assert answer.reason == str(wanted)
    if isinstance(answer, Placement):
        taken = {uuid for share in answer.shares for uuid in share.gpu_uuids}
        cards = {card.uuid: card for view in views for card in view.node.gpus}
        assert all(cards[uuid].numa_node != 1 for uuid in taken)
