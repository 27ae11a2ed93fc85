"""Nodes are emptied completely or not at all, never onto empty nodes, and only of movable pods."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings

from gpushare import contract, ledger
from gpushare.defragmentation import goals
from gpushare.defragmentation.evicting import Budgets
from gpushare.placement import NodeView
from tests.gpushare.defragmentation.clusters import NONE, cluster, moved, owned
from tests.gpushare.defragmentation.test_plans_keep_the_rules import ALLOWED, PODS, budget


def test_nodes_with_the_fewest_pods_are_emptied() -> None:
    placed = [
        (owned("a", request="0.3"), "n0/0"),
        (owned("b", request="0.4"), "n1/0"),
        (owned("c", request="0.3"), "n2/0"),
    ]
    world = cluster(*placed, nodes=4, gpus=1)
    plan = goals.empty_nodes(world, NONE, max_moves=9)
    assert [(step.name, step.gpus, len(step.moves)) for step in plan.steps] == [("n0", "n0/0", 1), ("n2", "n2/0", 1)]
    assert moved(plan) == [("a", "n0/0", "n1/0"), ("c", "n2/0", "n1/0")]
    assert [name for name in ("n0", "n1", "n2", "n3") if world.views[name].node.allocations] == ["n1"]


def test_node_is_not_emptied_if_a_pod_must_stay_or_moves_run_out() -> None:
    placed = ((owned("a", request="0.2"), "n0/0"), (owned("fixed", request="0.1", kind=""), "n0/1"))
    other = (owned("b", request="0.2", kind=""), "n1/0")
    assert moved(goals.empty_nodes(cluster(*placed, other, nodes=2), NONE, max_moves=9)) == []
    two = ((owned("a", request="0.2"), "n0/0"), (owned("c", request="0.1"), "n0/1"))
    for most, moves in ((1, 0), (2, 2)):
        assert len(goals.empty_nodes(cluster(*two, other, nodes=2), NONE, max_moves=most).moves) == moves


def test_no_pods_move_to_an_empty_node() -> None:
    world = cluster((owned("a", request="0.6"), "n0/0"), (owned("b", request="0.6"), "n1/0"), nodes=3, gpus=1)
    assert moved(goals.empty_nodes(world, NONE, max_moves=9)) == []
    assert not any(gpu.cordoned for view in world.views.values() for gpu in view.node.gpus)


def test_cordon_of_an_admin_stays() -> None:
    world = cluster((owned("a", request="0.2"), "n0/0"), (owned("b", request="0.3"), "n1/0"), nodes=2)
    node = world.views["n0"].node
    gpus = (node.gpus[0], dataclasses.replace(node.gpus[1], cordoned=True))
    world.put(NodeView.from_node(dataclasses.replace(node, gpus=gpus)))
    plan = goals.empty_nodes(world, NONE, max_moves=9)
    assert moved(plan) == [("a", "n0/0", "n1/0")]
    assert [gpu.cordoned for gpu in world.views["n0"].node.gpus] == [False, True]
    assert plan.moves[0].closed == (("n0", "GPU-n0-0"),)


@pytest.mark.slow
@given(PODS, ALLOWED)
@settings(max_examples=60, deadline=None)
def test_emptied_nodes_have_no_pods_and_no_rule_is_broken(
    pods: list[tuple[int, str, str, int, str, str]], allowed: dict[str, int]
) -> None:
    load: Counter[str] = Counter()
    placed: list[tuple[dict[str, Any], str]] = []
    for number, (percent, where, kind, priority, app, stays) in enumerate(pods):
        if load[where] + percent <= 100:
            load[where] += percent
            asks = {"request": f"{percent / 100}", "no_evict": stays}
            placed.append((owned(f"p{number}", kind=kind, priority=priority, app=app, **asks), where))
    world = cluster(*placed, nodes=3)
    full = {name for name, view in world.views.items() if view.node.allocations}
    plan = goals.empty_nodes(
        world, Budgets.from_manifests([budget(app, count) for app, count in allowed.items()]), max_moves=5
    )
    for move in plan.moves:
        assert move.manifest["metadata"]["ownerReferences"]
        assert move.manifest["metadata"]["annotations"][contract.NO_EVICT] == "false"
    evicted = Counter(move.manifest["metadata"]["labels"]["app"] for move in plan.moves)
    assert all(evicted[app] <= count for app, count in allowed.items())
    assert len(plan.moves) <= 5
    assert {name for name, view in world.views.items() if view.node.allocations} == full - {s.name for s in plan.steps}
    assert sum(len(view.node.allocations) for view in world.views.values()) == len(placed)
    for view in world.views.values():
        assert not ledger.violations(view.node)
        assert not any(gpu.cordoned for gpu in view.node.gpus)
