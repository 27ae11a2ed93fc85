"""Moves by value: only allowed ones, each to a GPU with room, never without a gain; waiting pods are admitted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract, ledger
from gpushare.allocation import Isolation
from gpushare.defragmentation import leaving, relocating
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.leaving import Movable
from gpushare.defragmentation.relocating import Chains
from gpushare.whatif.requesting_pod import RequestingPod
from tests.gpushare.defragmentation.clusters import NONE, cluster, moved, owned
from tests.gpushare.defragmentation.test_plans_keep_the_rules import ALLOWED, GPUS, PODS, PRIORITIES, budget, size


def waits(name: str, request: str, **asks: Any) -> tuple[str, RequestingPod]:
    return name, RequestingPod.from_manifest(owned(name, request=request, **asks))


def test_one_move_frees_a_whole_gpu() -> None:
    world = cluster((owned("a", request="0.25"), "n0/0"), (owned("b", request="0.5"), "n1/0"), nodes=2, gpus=1)
    plan = relocating.plan(world, [], NONE, max_moves=5)
    assert moved(plan) == [("a", "n0/0", "n1/0")]
    assert plan.gained is not None
    assert plan.gained > relocating.MIN_GAIN
    assert plan.after.largest_percent == 100


def test_no_pod_moves_without_a_gain() -> None:
    world = cluster((owned("a", request="0.5"), "n0/0"), (owned("b", request="0.5"), "n0/0"))
    assert moved(relocating.plan(world, [], NONE, max_moves=5)) == []


def test_waiting_pod_is_admitted_and_the_rest_get_a_reason() -> None:
    world = cluster((owned("a", request="0.25"), "n0/0"), (owned("b", request="0.5"), "n1/0"), nodes=2, gpus=1)
    plan = relocating.plan(world, [waits("first", "1"), waits("second", "1")], NONE, max_moves=5)
    assert moved(plan) == [("a", "n0/0", "n1/0")]
    assert [(step.name, step.gpus, len(step.moves)) for step in plan.steps] == [("first", "n0/0", 1), ("second", "", 0)]
    assert plan.steps[1].reason


@pytest.mark.parametrize("kind", [Isolation.MPS, Isolation.ARBITER])
def test_pods_with_auto_move_wherever_one_of_their_kinds_has_room(kind: Isolation) -> None:
    def auto(request: str) -> dict[str, str]:
        return {"request": request, "limit": request, "isolation": "auto"}

    placed = (owned("a", **auto("0.25")), "n0/0"), (owned("b", **auto("0.5")), "n1/0")
    plan = relocating.plan(cluster(*placed, nodes=2, gpus=1, kind=kind), [waits("w", **auto("0.9"))], NONE, max_moves=5)
    assert moved(plan) == [("a", "n0/0", "n1/0")]
    assert [(step.name, step.gpus) for step in plan.steps] == [("w", "n0/0")]
    opened = leaving.options(Movable(cluster(*placed, nodes=2, gpus=1, kind=kind), NONE), waits("w", **auto("0.75"))[1])
    assert [[mover.entry.id for mover in option.leaving] for option in opened] == [["b"]]


def test_each_pod_takes_the_place_of_the_next() -> None:
    """No single move admits the waiting pod: the pod in its way fits only in the place of another, which fits
    elsewhere.
    """
    placed = (
        (owned("a", request="0.5"), "n0/0"),
        (owned("fixed-a", request="0.3", kind=""), "n0/0"),
        (owned("b", request="0.3"), "n1/0"),
        (owned("fixed-b", request="0.4", kind=""), "n1/0"),
        (owned("fixed-c", request="0.7", kind=""), "n2/0"),
    )
    plan = relocating.plan(cluster(*placed, nodes=3, gpus=1), [waits("w", "0.7")], NONE, max_moves=5)
    assert moved(plan) == [("b", "n1/0", "n2/0"), ("a", "n0/0", "n1/0")]
    assert plan.steps[0].gpus == "n0/0"


def test_all_pods_of_a_shared_gpu_leave_for_a_pod_that_needs_it_whole() -> None:
    """Neither move alone gains anything, so only both together help; no other pod may take the GPU in between."""
    placed = (
        (owned("a", request="0.5"), "n0/0"),
        (owned("b", request="0.5"), "n0/0"),
        (owned("fixed-a", request="0.5", kind=""), "n1/0"),
        (owned("fixed-b", request="0.5", kind=""), "n2/0"),
    )
    waiting = [waits("w", "1")]
    plan = relocating.plan(cluster(*placed, nodes=3, gpus=1), waiting, NONE, max_moves=5)
    assert sorted(moved(plan)) == [("a", "n0/0", "n1/0"), ("b", "n0/0", "n2/0")]
    assert [(step.name, step.gpus) for step in plan.steps] == [("w", "n0/0")]
    assert all(("n0", "GPU-n0-0") in move.closed for move in plan.moves)
    assert moved(relocating.plan(cluster(*placed, nodes=3, gpus=1), waiting, NONE, max_moves=1)) == []


def test_several_gpus_of_a_node_are_freed_together() -> None:
    placed = [(owned(f"p{number}", request="0.5"), f"n0/{number // 2}") for number in range(4)]
    fixed = [
        (owned(f"fixed-{number}", request="0.5", kind=""), f"n{1 + number // 2}/{number % 2}") for number in range(4)
    ]
    plan = relocating.plan(cluster(*placed, *fixed, nodes=3), [waits("w", "1", gpus="2")], NONE, max_moves=5)
    assert len(plan.moves) == 4
    assert plan.steps[0].gpus == "n0/0,1"


@pytest.mark.slow
def test_plan_has_at_most_max_moves() -> None:
    placed = [(owned(f"p{number}", request="0.3"), f"n{number}/0") for number in range(6)]
    for most in (1, 2, 3):
        assert len(relocating.plan(cluster(*placed, nodes=6, gpus=1), [], NONE, max_moves=most).moves) == most


@pytest.mark.slow
def test_each_chain_of_moves_reaches_min_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = [(owned(f"p{number}", request="0.4"), f"n0/{number}") for number in range(4)]
    for least_gain, moves in ((0.02, 2), (0.1, 1)):
        world = cluster(*placed, nodes=1, gpus=4)
        monkeypatch.setattr(relocating, "MIN_GAIN", least_gain)
        plan = relocating.plan(world, [waits("w", "1")], NONE, max_moves=5)
        assert plan.gained is not None
        assert (len(plan.moves), plan.gained > 1) == (moves, True), "the pod that waits is let in"


def test_no_pod_of_higher_priority_moves_for_a_waiting_pod() -> None:
    placed = (owned("a", request="0.25", priority=10), "n0/0"), (owned("b", request="0.5", kind=""), "n1/0")
    for priority, moves in ((9, 0), (10, 1)):
        world = cluster(*placed, nodes=2, gpus=1)
        assert len(relocating.plan(world, [waits("w", "1", priority=priority)], NONE, max_moves=5).moves) == moves


def test_expected_gain_of_a_move_is_its_actual_gain() -> None:
    world = cluster((owned("a", request="0.25"), "n0/0"), (owned("b", request="0.5"), "n1/0"), nodes=2, gpus=1)
    chains = Chains(Movable(world, NONE))
    chains.refresh(world.usable())
    promised = {chain.ids: chain.promise for chain in chains.exchanges({}, 1)}
    plan = relocating.plan(world, [], NONE, max_moves=1)
    assert plan.gained is not None
    assert abs(promised[(plan.moves[0].entry.id,)] - plan.gained) < 0.02


WAITING = st.lists(st.tuples(st.sampled_from([50, 80, 100]), st.sampled_from([1, 1, 2]), PRIORITIES), max_size=3)


@pytest.mark.slow
@given(PODS, WAITING, ALLOWED, st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_move_is_allowed_and_has_room_at_its_time(
    pods: list[tuple[int, str, str, int, str, str]],
    wanted: list[tuple[int, int, int]],
    allowed: dict[str, int],
    most: int,
) -> None:
    load: Counter[str] = Counter()
    there: dict[str, tuple[dict[str, Any], str]] = {}
    for number, (percent, where, kind, priority, app, stays) in enumerate(pods):
        if load[where] + percent <= 100:
            load[where] += percent
            there[f"p{number}"] = (
                owned(f"p{number}", request=f"{percent / 100}", kind=kind, priority=priority, app=app, no_evict=stays),
                where,
            )
    waiting = [
        waits(f"w{number}", f"{size / 100}", gpus=str(gpus), priority=high)
        for number, (size, gpus, high) in enumerate(wanted)
    ]
    world = cluster(*there.values(), nodes=3)
    waiting = [(name, asked) for name, asked in waiting if world.engine.lowest(asked.request) == float("inf")]
    budgets = Budgets.from_manifests([budget(app, count) for app, count in allowed.items()])
    plan = relocating.plan(world, waiting, budgets, max_moves=most)

    evicted: Counter[str] = Counter()
    for step in plan.steps:
        for move in step.moves:
            manifest, where = there.pop(move.manifest["metadata"]["name"])  # no pod moves twice
            metadata = manifest["metadata"]
            assert metadata["ownerReferences"]
            assert metadata["annotations"][contract.NO_EVICT] == "false"
            assert (move.before, move.after in GPUS) == (where, True)
            assert move.after not in {f"{node}/{uuid[-1]}" for node, uuid in move.closed}
            evicted[metadata["labels"]["app"]] += 1
            load[move.before] -= size(manifest)
            load[move.after] += size(manifest)
            assert load[move.after] <= 100
    assert all(evicted[app] <= count for app, count in allowed.items())
    assert len(plan.moves) <= most
    for view in world.views.values():
        assert not ledger.violations(view.node)
        assert not any(gpu.cordoned for gpu in view.node.gpus)
    held = sum(len(view.node.allocations) for view in world.views.values())
    assert held == len(there) + len(plan.moves) + sum(bool(step.gpus) for step in plan.steps)
