"""No plan has more moves than needed: compared with every sequence of moves on small clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.defragmentation import goals
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.moves import DefragPlan
from tests.gpushare.defragmentation.clusters import NONE, cluster, hole, moved, owned

PER_NODE = 2
MAX = 2  # longest sequence of moves that is tried
Pod = tuple[int, int, bool]  # percent of a GPU, index of the GPU, whether it may be moved
SIZES = st.sampled_from([10, 20, 30, 50, 60])
PODS = st.lists(st.tuples(SIZES, st.integers(0, 3), st.booleans()), min_size=2, max_size=7)


def loads_of(pods: Sequence[Pod]) -> list[int]:
    loads = [0] * 4
    for size, where, _ in pods:
        loads[where] += size
    return loads


def fewest(pods: Sequence[Pod], need: int, gpus: int) -> int | None:
    """Return the length of the shortest valid sequence of moves, each to a GPU with room at its time; None if above
    MOST.
    """
    states = {(tuple(loads_of(pods)), frozenset[int]())}
    for count in range(MAX + 1):
        if any(fits(loads, need, gpus) for loads, _ in states):
            return count
        states = {
            (after(loads, pods[number], where), gone | {number})
            for loads, gone in states
            for number, (size, at, may) in enumerate(pods)
            for where in range(4)
            if may and number not in gone and where != at and loads[where] + size <= 100
        }
    return None


def fits(loads: Sequence[int], need: int, gpus: int) -> bool:
    nodes = (loads[:PER_NODE], loads[PER_NODE:])
    return any(sum(load + need <= 100 for load in node) >= gpus for node in nodes)


def after(loads: Sequence[int], pod: Pod, where: int) -> tuple[int, ...]:
    changed = [*loads]
    changed[pod[1]] -= pod[0]
    changed[where] += pod[0]
    return tuple(changed)


def placed(pods: Sequence[Pod]) -> list[tuple[dict[str, Any], str]]:
    return [
        (
            owned(f"p{number}", request=f"{size / 100}", kind="ReplicaSet" if may else ""),
            f"n{where // PER_NODE}/{where % PER_NODE}",
        )
        for number, (size, where, may) in enumerate(pods)
    ]


def planned(pods: Sequence[Pod], need: int, gpus: int = 1) -> DefragPlan:
    asked = hole(request=f"{need / 100}", gpus=str(gpus))
    return goals.make_room(cluster(*placed(pods), nodes=2), [asked], NONE, stay=False)


@pytest.mark.slow
@given(PODS, st.sampled_from([50, 80, 100]))
@settings(max_examples=150)
def test_plan_for_one_gpu_has_the_fewest_possible_moves(pods: list[Pod], need: int) -> None:
    while max(loads_of(pods)) > 100:
        pods.pop()
    plan = planned(pods, need)
    least = fewest(pods, need, 1)
    if least is not None:
        assert plan.steps[0].gpus
        assert len(plan.moves) == least
    else:
        assert not plan.steps[0].gpus or len(plan.moves) > MAX


@pytest.mark.slow
@given(PODS, st.sampled_from([50, 80, 100]))
@settings(max_examples=60)
def test_every_move_has_room_at_its_time(pods: list[Pod], need: int) -> None:
    while max(loads_of(pods)) > 100:
        pods.pop()
    plan = planned(pods, need, 2)
    loads = loads_of(pods)
    for name, before, to in moved(plan):
        size = pods[int(name[1:])][0]
        for where, change in ((before, -size), (to, size)):
            node, index = where[1:].split("/")
            loads[int(node) * PER_NODE + int(index)] += change
        assert max(loads) <= 100
    assert fits(loads, need, 2) is bool(plan.steps[0].gpus)


@pytest.mark.parametrize(
    ("pods", "need", "gpus", "moves"),
    [
        # The small pod on n0/1 makes room for the one that has to leave n1/0.
        (
            [(60, 0, False), (50, 1, False), (20, 1, True), (50, 2, True), (100, 3, False)],
            80,
            1,
            [("p2", "n0/1", "n0/0"), ("p3", "n1/0", "n0/1")],
        ),
        # The pod that leaves n0/0 may move to n0/1, which the other pod has left: enough remains there for the share.
        (
            [
                (10, 2, False),
                (60, 2, False),
                (10, 3, False),
                (60, 1, True),
                (30, 0, False),
                (10, 0, False),
                (50, 0, True),
            ],
            50,
            2,
            [("p3", "n0/1", "n1/1"), ("p6", "n0/0", "n0/1")],
        ),
    ],
    ids=["one after the other", "to a GPU that was left"],
)
def test_moves_can_make_room_for_each_other(
    pods: list[Pod], need: int, gpus: int, moves: list[tuple[str, str, str]]
) -> None:
    plan = planned(pods, need, gpus)
    assert moved(plan) == moves
    assert len(plan.moves) == fewest(pods, need, gpus)


@pytest.mark.parametrize(("allowed", "moves"), [(0, 0), (1, 0), (2, 2)])
def test_move_and_the_move_that_makes_room_for_it_share_a_budget(allowed: int, moves: int) -> None:
    pods = placed([(60, 0, False), (50, 1, False), (20, 1, True), (50, 2, True), (100, 3, False)])
    for manifest, _ in pods:
        manifest["metadata"]["labels"] = {"app": "web"}
    budget = {
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed},
    }
    asked = hole(request="0.8")
    plan = goals.make_room(cluster(*pods, nodes=2), [asked], Budgets.from_manifests([budget]), stay=False)
    assert len(plan.moves) == moves


def test_gpu_that_makes_room_for_a_move_is_cordoned_only_during_it() -> None:
    plan = planned([(60, 0, False), (50, 1, False), (20, 1, True), (50, 2, True), (100, 3, False)], 80)
    first, second = plan.moves
    assert first.closed == (("n1", "GPU-n1-0"), ("n0", "GPU-n0-1"))
    assert second.closed == (("n1", "GPU-n1-0"),)
