"""CPU-only pods in plans: moved only on request, only if allowed, and never back to their old node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract, ledger
from gpushare.defragmentation import goals, leaving, relocating
from gpushare.defragmentation.evicting import Budgets
from gpushare.defragmentation.moves import DefragPlan
from gpushare.mix import Host, Mix, classes_of
from gpushare.placement_profile import PlacementProfile
from gpushare.whatif.requesting_pod import RequestingPod
from gpushare.whatif.world import World
from tests import builders
from tests.gpushare.defragmentation.clusters import NONE, moved, node_manifest, owned, put
from tests.gpushare.defragmentation.test_plans_keep_the_rules import ALLOWED, budget

CPUS = 8  # of each node with a GPU
OTHER_CPUS = 32  # of the node without GPUs; the scheduler prefers it as it is emptier


def plain(name: str, node: str, cpu: int, **owner: Any) -> dict[str, Any]:
    """Return a pod without a share, on a node."""
    manifest = with_cpu(owned(name, **owner), cpu)
    manifest["metadata"]["annotations"] = {}
    manifest["spec"]["nodeName"] = node
    return manifest


def with_cpu(manifest: dict[str, Any], cpu: int) -> dict[str, Any]:
    manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpu)}}
    return manifest


def waits(name: str, cpu: int, request: str = "1", **asks: Any) -> tuple[str, RequestingPod]:
    return name, RequestingPod.from_manifest(with_cpu(owned(name, request=request, **asks), cpu))


def world(
    *pods: dict[str, Any],
    gpu_nodes: int = 1,
    tainted: str = "",
    placed: tuple[Any, ...] = (),
    profile: PlacementProfile | None = None,
) -> World:
    """Return GPU nodes n0, n1, … with a GPU each, and `plain` without GPUs."""
    nodes = {f"n{number}": builders.node(f"n{number}", gpus=1) for number in range(gpu_nodes)}
    for manifest, node in placed:
        share = RequestingPod.from_manifest(manifest).request.demands[0].share
        name = manifest["metadata"]["name"]
        entry = builders.allocation(
            *(name, f"GPU-{node}-0"),
            request=share.request_percent,
            memory_gib=share.memory.on(80 * builders.GIB) // builders.GIB,
            pod_name=name,
            uid=manifest["metadata"]["uid"],
        )
        nodes[node] = ledger.reserve(nodes[node], entry)
        put(manifest, entry, node)
    node_manifests = [node_manifest(name, gpus=1) for name in nodes]
    other = node_manifest("plain", gpus=1)
    other["status"]["allocatable"] = {"cpu": str(OTHER_CPUS), "memory": "64Gi", "pods": "110"}
    if tainted:
        other["spec"] = {"taints": [{"key": "dear", "effect": tainted}]}
    there = [*pods, *(manifest for manifest, _ in placed)]
    return World(nodes.values(), [*node_manifests, other], there, profile=profile)


def by_fewest(
    state: World, wanted: list[tuple[str, RequestingPod]], budgets: Budgets = NONE, *, moves_cpu_only: bool = True
) -> DefragPlan:
    return goals.make_room(state, wanted, budgets, moves_cpu_only=moves_cpu_only)


def by_worth(
    state: World, wanted: list[tuple[str, RequestingPod]], budgets: Budgets = NONE, *, moves_cpu_only: bool = True
) -> DefragPlan:
    return relocating.plan(state, wanted, budgets, max_moves=6, moves_cpu_only=moves_cpu_only)


BOTH = pytest.mark.parametrize("plan", [by_fewest, by_worth])


@BOTH
def test_cpu_only_pod_is_moved_off_a_free_gpus_node_only_if_allowed(plan: Any) -> None:
    wanted = [waits("w", 4)]
    assert moved(plan(world(plain("c", "n0", 6)), wanted, moves_cpu_only=False)) == []
    made = plan(world(plain("c", "n0", 6)), wanted)
    assert moved(made) == [("c", "n0", "plain")]
    assert [(step.name, step.gpus) for step in made.steps] == [("w", "n0/0")]
    assert [move.is_cpu_only for move in made.moves] == [True]


@BOTH
def test_fewest_and_smallest_cpu_only_pods_are_moved(plan: Any) -> None:
    pods = [plain("little", "n0", 1), plain("enough", "n0", 3), plain("more", "n0", 4)]
    made = plan(world(*pods), [waits("w", 3)])
    assert [name for name, _, _ in moved(made)] == ["enough"]


@BOTH
def test_pods_with_and_without_shares_leave_together(plan: Any) -> None:
    placed = ((with_cpu(owned("a", request="0.5"), 1), "n0"), (with_cpu(owned("b", request="0.5", kind=""), 1), "n1"))
    made = plan(world(plain("c", "n0", 6), gpu_nodes=2, placed=placed), [waits("w", 4)])
    assert sorted(moved(made)) == [("a", "n0/0", "n1/0"), ("c", "n0", "plain")]
    assert made.steps[0].gpus == "n0/0"


@BOTH
@pytest.mark.parametrize(
    "stays",
    [
        plain("c", "n0", 6, kind="DaemonSet"),
        plain("c", "n0", 6, kind="Node"),  # a mirror pod
        plain("c", "n0", 6, kind="Job"),
        plain("c", "n0", 6, kind=""),
        plain("c", "n0", 6, priority=2_000_000_000),
        plain("c", "n0", 6, priority=10),  # higher than the waiting pod's
    ],
    ids=["daemon", "mirror", "job", "bare", "system", "higher"],
)
def test_pods_without_recreating_owner_or_with_higher_priority_stay(plan: Any, stays: dict[str, Any]) -> None:
    assert moved(plan(world(stays), [waits("w", 4)])) == []


@BOTH
def test_pods_with_no_evict_annotation_or_devices_stay(plan: Any) -> None:
    kept, device, claims = (plain("c", "n0", 6) for _ in range(3))
    kept["metadata"]["annotations"] = {contract.NO_EVICT: "true"}
    device["spec"]["containers"][0]["resources"]["limits"] = {"example.com/card": "1"}
    claims["spec"]["resourceClaims"] = [{"name": "card"}]
    for stays in (kept, device, claims):
        assert moved(plan(world(stays), [waits("w", 4)])) == []


@BOTH
def test_plan_respects_a_disruption_budget(plan: Any) -> None:
    pods = [plain("c", "n0", 3, app="a"), plain("d", "n0", 3, app="a")]
    wanted = [waits("w", 7)]
    assert len(moved(plan(world(*pods), wanted, Budgets.from_manifests([budget("a", 2)])))) == 2
    assert moved(plan(world(*pods), wanted, Budgets.from_manifests([budget("a", 1)]))) == []


@BOTH
def test_pods_that_fit_nowhere_else_or_would_return_stay(plan: Any) -> None:
    assert moved(plan(world(plain("c", "n0", 6), plain("there", "plain", 27)), [waits("w", 4)])) == []
    assert moved(plan(world(plain("c", "n0", 6), tainted="NoSchedule"), [waits("w", 4)])) == []
    # The scheduler prefers the node that the pod leaves.
    assert moved(plan(world(plain("c", "n0", 6), tainted="PreferNoSchedule"), [waits("w", 4)])) == []


@BOTH
def test_cpu_only_pods_are_not_moved_for_a_used_gpu(plan: Any) -> None:
    placed = ((with_cpu(owned("a", request="1", kind=""), 1), "n0"),)
    assert moved(plan(world(plain("c", "n0", 6), placed=placed), [waits("w", 4)])) == []


@BOTH
def test_no_pod_moves_if_the_scheduler_may_choose_the_same_node(plan: Any) -> None:
    alike = world(plain("c", "n0", 6), plain("there", "plain", 18))  # 6 of 8 and 24 of 32: the old node wins the tie
    assert moved(plan(alike, [waits("w", 4)])) == []


def test_cpu_only_pod_leaves_a_node_whose_gpu_gains_value() -> None:
    usual = classes_of(waits("w", 4)[1].request, Host(4000, 0))
    profile = PlacementProfile(mix=Mix.from_counts(Counter(usual), pods=100))
    made = by_worth(world(plain("c", "n0", 8), profile=profile), [])
    assert moved(made) == [("c", "n0", "plain")]
    assert made.gained is not None
    assert made.gained > relocating.MIN_GAIN


def test_pod_with_a_share_is_not_cpu_only() -> None:
    assert leaving.is_cpu_only(plain("c", "n0", 1))
    assert not leaving.is_cpu_only(owned("a", request="0.5"))


PLAIN = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.sampled_from(["n0", "n1", "n2", "plain"]),
        st.sampled_from(["ReplicaSet", "ReplicaSet", "StatefulSet", "DaemonSet", ""]),
        st.sampled_from([0, 0, 5, 10]),
        st.sampled_from("abc"),
        st.booleans(),
    ),
    max_size=8,
)
SHARES = st.lists(st.tuples(st.sampled_from([30, 50, 60]), st.sampled_from(["n0", "n1", "n2"])), max_size=4)
WANTED = st.lists(st.tuples(st.sampled_from([50, 100]), st.integers(1, 7), st.sampled_from([0, 5])), max_size=3)


@pytest.mark.slow
@BOTH
@given(PLAIN, SHARES, WANTED, ALLOWED)
@settings(max_examples=80, deadline=None)
def test_every_move_is_allowed_and_has_room_at_its_time(
    plan: Any,
    several: list[tuple[int, str, str, int, str, bool]],
    shares: list[tuple[int, str]],
    wanted: list[tuple[int, int, int]],
    allowed: dict[str, int],
) -> None:
    free: Counter[str] = Counter(dict.fromkeys(("n0", "n1", "n2"), CPUS) | {"plain": OTHER_CPUS})
    compute: Counter[str] = Counter(dict.fromkeys(("n0", "n1", "n2"), 100))
    pods: dict[str, tuple[dict[str, Any], int, int]] = {}  # CPUs and percent
    for number, (cpu, node, kind, priority, app, stays) in enumerate(several):
        if cpu <= free[node]:
            free[node] -= cpu
            manifest = plain(f"c{number}", node, cpu, kind=kind, priority=priority, app=app)
            manifest["metadata"]["annotations"] = {contract.NO_EVICT: str(stays).lower()}
            pods[f"c{number}"] = manifest, cpu, 0
    placed = []
    for number, (percent, node) in enumerate(shares):
        if free[node] and compute[node] >= percent:
            free[node] -= 1
            compute[node] -= percent
            manifest = with_cpu(owned(f"p{number}", request=f"{percent / 100}", app="a"), 1)
            placed.append((manifest, node))
            pods[f"p{number}"] = manifest, 1, percent
    state = world(
        *(manifest for manifest, _, percent in pods.values() if not percent), gpu_nodes=3, placed=tuple(placed)
    )
    waiting = [
        waits(f"w{number}", cpu, f"{percent / 100}", priority=priority)
        for number, (percent, cpu, priority) in enumerate(wanted)
    ]
    if plan is by_worth:  # which expects only pods that fit nowhere
        waiting = [
            (name, asked)
            for name, asked in waiting
            if state.engine.lowest(asked.request, host=state.host(asked.manifest)) == float("inf")
        ]
    asks = dict(waiting)
    made = plan(state, waiting, Budgets.from_manifests([budget(app, count) for app, count in allowed.items()]))

    evicted: Counter[str] = Counter()
    for step in made.steps:
        for move in step.moves:
            manifest, cpu, percent = pods.pop(move.manifest["metadata"]["name"])  # no pod moves twice
            assert manifest["metadata"]["ownerReferences"][0]["kind"] in {"ReplicaSet", "StatefulSet"}
            assert manifest["metadata"]["annotations"].get(contract.NO_EVICT) != "true"
            assert move.is_cpu_only == (percent == 0)
            source, target = move.nodes
            assert not move.is_cpu_only or source != target
            if step.asked is not None:
                assert manifest["spec"]["priority"] <= asks[step.name].manifest["spec"]["priority"]
            evicted[manifest["metadata"]["labels"]["app"]] += 1
            free[source] += cpu
            free[target] -= cpu
            compute[source] += percent
            compute[target] -= percent
            assert free[target] >= 0
            assert compute[target] >= 0
        if step.gpus:
            asked = asks[step.name]
            node = step.gpus.partition("/")[0]
            free[node] -= int(asked.manifest["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            compute[node] -= round(asked.request_gpus * 100)
            assert free[node] >= 0
            assert compute[node] >= 0
    assert all(evicted[app] <= count for app, count in allowed.items())
