"""A namespace never has more GPUs to itself than its ResourceQuota allows, with any requests."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from gpushare import ledger
from gpushare.allocation import PodRef
from gpushare.placement import NodeView, Placement, exclusive_gpus
from gpushare.placement.exclusive_gpus import ExclusiveBound
from gpushare.placement.fleet import Fleet
from gpushare.refusal import Cause
from gpushare.request import Request
from tests.gpushare.laws import strategies

NAMESPACES = ("team", "other")
events = st.lists(st.tuples(st.sampled_from(NAMESPACES), strategies.requests(), st.integers(0, 9)), max_size=12)


@given(
    nodes=st.tuples(strategies.gpu_nodes("node-a"), strategies.gpu_nodes("node-b")),
    percents=st.fixed_dictionaries({name: st.none() | st.integers(0, 500) for name in NAMESPACES}),
    events=events,
)
def test_no_sequence_of_pods_exceeds_the_bound(
    nodes: tuple, percents: dict[str, int | None], events: list[tuple[str, Request, int]]
) -> None:
    fleet, views = Fleet(), {node.name: NodeView.from_node(dataclasses.replace(node, allocations=())) for node in nodes}
    for view in views.values():
        fleet.update(view)
    bounds = {name: ExclusiveBound(name, "gpus", percent) for name, percent in percents.items() if percent is not None}
    placed: list[tuple[str, str]] = []
    for number, (namespace, request, ends) in enumerate(events):
        if placed and ends == 0:
            node, identity = placed.pop(0)
            views[node] = NodeView.from_node(ledger.release(views[node].node, [identity]))
            fleet.update(views[node])
        bound = bounds.get(namespace)
        assert {view.node.name for view in fleet.exclusive_views()} == {
            name for name, view in views.items() if any(entry.labels.exclusion for entry in view.node.allocations)
        }
        outcome = exclusive_gpus.place(request, bound, fleet.exclusive_views(), fleet.place)
        if isinstance(outcome, Placement):
            pod = PodRef(namespace, f"p{number}", f"u{number}")
            entry = outcome.allocation(request, allocation_id=f"a{number}", pod=pod, reserved_until=None)
            views[outcome.node] = NodeView.from_node(ledger.reserve(views[outcome.node].node, entry))
            fleet.update(views[outcome.node])
            placed.append((outcome.node, entry.id))
        elif outcome.cause is Cause.QUOTA:
            assert bound is not None
            assert request.constraints.exclusion
            assert isinstance(fleet.place(request), Placement) or bound.most_gpus <= len(
                exclusive_gpus.held_gpus(namespace, views.values())
            )
        for name, limit in bounds.items():
            assert len(exclusive_gpus.held_gpus(name, views.values())) <= limit.most_gpus
