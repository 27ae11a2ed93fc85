"""Plans with the fewest moves can be carried out, and move only pods that may be moved."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract, ledger
from gpushare.defragmentation import evicting, goals
from gpushare.defragmentation.evicting import Budgets
from gpushare.placement import Placement
from gpushare.refusal import Refusal
from gpushare.whatif.requesting_pod import RequestingPod
from kubectl_gpushare.planning import reasons, remedies
from kubectl_gpushare.source.snapshot import Snapshot
from tests.gpushare.defragmentation.clusters import NONE, cluster, hole, moved, node_manifest, owned


def test_one_move_frees_a_hole() -> None:
    world = cluster((owned("a", request="0.25"), "n0/0"), (owned("b", request="0.5"), "n0/1"))
    plan = goals.make_room(world, [hole(request="1")], NONE, stay=False)
    assert moved(plan) == [("a", "n0/0", "n0/1")]
    assert plan.steps[0].gpus == "n0/0"
    assert plan.steps[0].closed == (("n0", "GPU-n0-0"),)
    assert plan.after.largest_percent == 100


def test_moved_pod_does_not_return_to_the_hole() -> None:
    """Placement alone would put the small pod back: its old GPU is the fullest on which it fits."""
    world = cluster((owned("a", request="0.6"), "n0/0"), (owned("b", request="0.3"), "n0/1"))
    plan = goals.make_room(world, [hole(request="1")], NONE, stay=False)
    assert moved(plan) == [("b", "n0/1", "n0/0")]


def test_share_that_fits_needs_no_moves() -> None:
    plan = goals.make_room(cluster((owned("a", request="0.25"), "n0/0")), [hole(request="1")], NONE, stay=False)
    assert (moved(plan), plan.steps[0].gpus) == ([], "n0/1")


def test_pod_leaves_a_node_that_lacks_only_room_for_one_more_pod() -> None:
    there = (
        (owned("a", request="0.1"), "n0/0"),
        (owned("b", request="0.1"), "n0/0"),
        (owned("c", request="0.7"), "n1/0"),
    )
    plan = goals.make_room(cluster(*there, nodes=2, gpus=1, pods=2), [hole(request="0.5")], NONE, stay=False)
    assert (moved(plan), plan.steps[0].gpus) == ([("a", "n0/0", "n1/0")], "n0/0")


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (owned("a", request="0.25", kind=""), "no owner that would recreate it"),
        (owned("a", request="0.25", kind="Job"), "owned by a Job, which may not recreate it"),
        (owned("a", request="0.25", no_evict="true"), "gpushare.io/no-evict"),
        (owned("a", request="0.25", priority=2_000_000_000), "a system priority"),
        (owned("a", request="0.25", group="g", group_size="2"), "a member of a group"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_protected_pods_stay(manifest: dict[str, Any], reason: str) -> None:
    world = cluster((manifest, "n0/0"), (owned("b", request="0.8"), "n0/1"))
    plan = goals.make_room(world, [hole(request="1")], NONE, stay=False)
    assert moved(plan) == []
    assert plan.steps[0].reason
    assert dict(plan.fixed)[reason] == 1


def test_resized_pod_stays_as_it_would_be_recreated_in_its_old_size() -> None:
    resized = owned("a", request="0.25")
    world = cluster((resized, "n0/0"), (owned("b", request="0.5"), "n0/1"))
    resized["spec"]["containers"][0]["env"] = [{"name": contract.ENV_REQUEST, "value": "10"}]
    plan = goals.make_room(world, [hole(request="1")], NONE, stay=False)
    assert moved(plan) == [] or [name for name, *_ in moved(plan)] == ["b"]
    assert ("resized, and would be recreated with their original size", 1) in plan.fixed


def test_waiting_pod_moves_no_pod_of_higher_priority() -> None:
    placed = (owned("a", request="0.25", priority=10), "n0/0"), (owned("b", request="0.5", priority=10), "n0/1")
    for priority, moves in ((9, 0), (10, 1)):
        waits = RequestingPod.from_manifest(owned("w", request="1", priority=priority))
        plan = goals.make_room(cluster(*placed), [("w", waits)], NONE)
        assert len(plan.moves) == moves


@pytest.mark.slow
def test_several_moves_do_not_exceed_a_budget() -> None:
    def budget(allowed: int) -> Budgets:
        spec = {"selector": {"matchLabels": {"app": "web"}}}
        metadata = {"namespace": "default", "name": "web"}
        return Budgets.from_manifests([{"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}}])

    pods = [(owned(f"w{number}", request="0.3", app="web"), f"n0/{number}") for number in range(4)]
    wanted = [hole(request="1", gpus="2")]
    for allowed, moves in ((0, 0), (1, 0), (2, 2)):
        plan = goals.make_room(cluster(*pods, gpus=4), wanted, budget(allowed), stay=False)
        assert len(plan.moves) == moves


@pytest.mark.slow
def test_pod_with_two_budgets_stays_as_its_eviction_is_rejected() -> None:
    def budget(name: str) -> dict[str, Any]:
        spec = {"selector": {"matchLabels": {"app": "a"}}}
        return {"metadata": {"namespace": "default", "name": name}, "spec": spec, "status": {"disruptionsAllowed": 9}}

    for budgets, moves in (([budget("one")], 1), ([budget("one"), budget("other")], 0)):
        world = cluster((owned("a", request="0.25"), "n0/0"), (owned("b", request="0.5", kind=""), "n0/1"))
        plan = goals.make_room(world, [hole(request="1")], Budgets.from_manifests(budgets), stay=False)
        assert len(plan.moves) == moves
        assert any("several PodDisruptionBudgets" in reason for reason, _ in plan.fixed) is not bool(moves)


def test_largest_possible_hole_is_freed() -> None:
    fixed = owned("fixed", request="0.2", kind="")
    world = cluster((fixed, "n0/0"), (owned("b", request="0.4"), "n0/0"), (owned("c", request="0.6"), "n0/1"))
    plan = goals.largest_hole(world, NONE)
    assert plan.steps[0].name == "a free part of 0.75 GPU"
    assert moved(plan) == [("b", "n0/0", "n0/1")]


def test_smaller_hole_is_tried_if_memory_for_a_whole_gpu_is_missing() -> None:
    world = cluster((owned("full", request="1", kind=""), "n0/1"), (owned("m", memory="8Gi", kind=""), "n0/0"))
    plan = goals.largest_hole(world, NONE)
    assert (plan.steps[0].name, plan.steps[0].gpus, moved(plan)) == ("a free part of 0.75 GPU", "n0/0", [])


def test_waiting_pods_are_sorted_by_priority_then_age() -> None:
    def gated(name: str, priority: int, created: str) -> dict[str, Any]:
        manifest = owned(name, request="1", priority=priority)
        manifest["metadata"]["creationTimestamp"] = created
        manifest["spec"]["schedulingGates"] = [{"name": contract.SCHEDULING_GATE}]
        return manifest

    world = cluster((owned("a", request="0.25"), "n0/0"), (owned("b", request="0.5"), "n0/1"))
    waiting = [gated("young", 0, "2026-02-01T00:00:00Z"), gated("old", 0, "2026-01-01T00:00:00Z"), gated("high", 5, "")]
    assert [name for name, _ in goals.waiting(world, waiting)] == ["default/high", "default/old", "default/young"]


def test_no_room_is_made_for_a_group_member() -> None:
    single, member = owned("a", request="1"), owned("b", request="1", group="g", group_size="2")
    assert not goals.pointless(single, RequestingPod.from_manifest(single))
    assert goals.pointless(member, RequestingPod.from_manifest(member)) == (
        "pod default/b belongs to a group, and moves make room for single pods only"
    )


SIZES = st.sampled_from(["0.1", "0.2", "0.3", "0.5", "0.6"])
PODS = st.lists(st.tuples(SIZES, st.integers(0, 5), st.booleans()), max_size=10)


@pytest.mark.slow
@given(PODS, st.sampled_from(["0.5", "0.8", "1"]), st.sampled_from(["1", "2"]))
@settings(max_examples=80, deadline=None)
def test_plan_can_be_carried_out_without_breaking_a_rule(
    pods: list[tuple[str, int, bool]], request: str, gpus: str
) -> None:
    placed = []
    for number, (size, where, movable) in enumerate(pods):
        manifest = owned(f"p{number}", request=size, kind="ReplicaSet" if movable else "")
        try:
            cluster(*placed, (manifest, f"n{where // 2}/{where % 2}"), nodes=3)
        except ledger.errors.LedgerError:
            continue
        placed.append((manifest, f"n{where // 2}/{where % 2}"))
    world = cluster(*placed, nodes=3)
    before = {name: view.node for name, view in world.views.items()}
    asked = hole(request=request, gpus=gpus)
    plan = goals.make_room(world, [asked], NONE, stay=False)
    for view in world.views.values():
        assert not ledger.violations(view.node)
        assert not any(gpu.cordoned for gpu in view.node.gpus)
    assert sum(len(view.node.allocations) for view in world.views.values()) == len(placed)
    assert all(evicting.owner(move.manifest)[0] for move in plan.moves)
    assert max(Counter(move.entry.id for move in plan.moves).values(), default=1) == 1
    if plan.steps[0].gpus:
        assert isinstance(world.place(asked[1].manifest, asked[1].request), Placement)
    else:
        assert {name: view.node for name, view in world.views.items()} == before


def test_pod_pinned_by_the_webhook_moves_to_another_node() -> None:
    world = cluster((owned("a", request="0.25"), "n0/0"), (owned("b", request="0.5"), "n1/0"), nodes=2, gpus=1)
    plan = goals.make_room(world, [hole(request="1")], NONE, stay=False)
    assert moved(plan) == [("a", "n0/0", "n1/0")]


def test_pod_with_its_own_hostname_selector_stays() -> None:
    stays = owned("a", request="0.25")
    stays["spec"]["nodeSelector"] = {contract.HOSTNAME_LABEL: "n0"}
    world = cluster((stays, "n0/0"), (owned("b", request="0.5"), "n1/0"), nodes=2, gpus=1)
    plan = goals.make_room(world, [hole(request="1")], NONE, stay=False)
    assert moved(plan) == [("b", "n1/0", "n0/0")]


def test_why_names_a_pod_that_could_move() -> None:
    world = cluster((owned("a", request="0.25"), "n0/0"), (owned("b", request="0.5"), "n1/0"), nodes=2, gpus=1)
    wanted = hole(request="1")[1]
    refusal = world.refuse(wanted.manifest, wanted.request)
    assert isinstance(refusal, Refusal)
    advice = [remedy.sentence for remedy in remedies.all_of(world, wanted, refusal.rejected) if remedy.kind == "move"]
    assert advice == ["if default/a moved to n1/0"]


def test_why_for_a_placed_pod_considers_other_nodes() -> None:
    placed = owned("a", request="0.25")
    world = cluster((placed, "n0/0"), nodes=2, gpus=1)
    node_manifests = tuple(node_manifest(name, gpus=1) for name in world.views)
    why = reasons.explain(
        placed, Snapshot(tuple(view.node for view in world.views.values()), (placed,), node_objects=node_manifests)
    )
    assert why.fits == 2
