"""Preemption is bounded: which pods stay, which pods evict none, and how much is searched and evicted at a time."""

from __future__ import annotations

import functools
import types
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_errors
from gpushare.cluster.object_store import Key
from gpushare.placement import NodeView
from gpushare.preemption import Nomination
from gpushare.refusal import Cause, Refusal
from tests import builders
from tests.webhook.controllers.preempting_cluster import Preempting, budget, full, leave
from webhook.controllers.preemption import preemptor


@pytest.mark.parametrize(
    ("owner", "more"),
    [
        ("", {}),
        ("Job", {}),
        ("ReplicaSet", {"no_evict": "true"}),
        ("ReplicaSet", {"group": "ring", "group_size": "1-2"}),
    ],
    ids=["no owner", "Job", "no-evict", "gang"],
)
async def test_protected_pods_stay(owner: str, more: dict[str, Any]) -> None:
    cluster = Preempting(builders.node("node-a", gpus=1))
    await cluster.run("stays", owner=owner, request="1", **more)
    cluster.ask("high", request="1")
    told = await cluster.round()
    assert (cluster.evicted, cluster.held()) == ([], {})
    assert "takes the place" not in told["high"]


async def test_a_pod_that_became_protected_meanwhile_stays_and_another_goes() -> None:
    cluster = await full(1, 2)
    cluster.ask("high", request="1")
    await cluster.step()
    stale = {Key("default", name): pod for name, pod in cluster.stored().items()}
    cluster.pods["p0"]["metadata"]["annotations"][contract.NO_EVICT] = "true"
    cluster.preemptor._finder.pods = types.MappingProxyType(stale)
    await cluster.preemptor.reconcile([(stale[Key("default", "high")], Refusal("no GPU fits"))])
    assert cluster.evicted == ["p1"]


async def test_a_budget_counts_for_all_victims_together() -> None:
    cluster = await full()
    for name in ("a", "b"):
        await cluster.run(name, request="0.5", uuid="GPU-node-a-0")
    await cluster.run("c", priority=5, request="1")
    for name in ("a", "b"):
        cluster.pods[name]["metadata"]["labels"] = {"app": "web"}
    cluster.budgets.append(budget("web", allowed=1))  # both are needed
    cluster.ask("high", request="1")
    await cluster.round()
    assert cluster.evicted == ["c"]


@pytest.mark.parametrize("more", [{"policy": "Never"}, {"priority": 0}, {"group": "ring", "group_size": "1-2"}])
async def test_pods_that_may_not_preempt_wait(more: dict[str, Any]) -> None:
    cluster = await full(0, 0)
    cluster.ask("waits", request="1", **more)
    await cluster.round()
    assert cluster.evicted == []


@pytest.mark.parametrize("cause", [Cause.QUOTA, Cause.UNCLAIMED, Cause.GATE, Cause.TURN, Cause.LEDGER])
async def test_a_pod_that_waits_for_a_quota_evicts_none(cause: Cause) -> None:
    """Or for anything but room: priority gives a namespace nothing beyond its quota."""
    cluster = await full(0, 0)
    cluster.ask("high", request="1")
    await cluster.step()
    (pod,) = (pod for pod in cluster.stored().values() if pod.ref.name == "high")
    waiting = await cluster.preemptor.reconcile([(pod, Refusal("beyond its quota", cause=cause))])
    assert (cluster.evicted, [why.cause for _, why in waiting]) == ([], [cause])


async def test_no_pod_goes_if_one_is_ending_anyway_or_if_it_would_not_help() -> None:
    cluster = await full(0, 0)
    leave(cluster, "p0")
    cluster.ask("high", request="1")
    await cluster.round()
    cluster.ask("larger", priority=20, request="1", gpus="3")
    await cluster.round()
    assert cluster.evicted == []


async def test_no_pod_goes_if_one_of_equal_priority_is_ending_on_another_node() -> None:
    cluster = Preempting(builders.node("node-a", gpus=1), builders.node("node-b", gpus=1))
    await cluster.run("old", priority=10, request="1")
    await cluster.run("low", request="1")
    leave(cluster, "old")
    cluster.ask("high", request="1")
    await cluster.round()
    assert cluster.evicted == []


async def test_there_is_one_preemption_at_a_time_per_namespace_and_node() -> None:
    cluster = await full(0, 0, 0, gpus=3)
    for name in ("x", "y"):
        cluster.ask(name, request="1")
    for _ in range(3):
        await cluster.round()
    assert len(cluster.evicted) == 1


async def test_victims_that_do_not_end_do_not_stop_preemption_for_other_pods() -> None:
    cluster = Preempting(builders.node("node-a", gpus=1), builders.node("node-b", gpus=1))
    for name in ("p0", "p1"):
        await cluster.run(name, request="1")
    for name in ("x", "y"):
        cluster.ask(name, request="1")
    for _ in range(2):
        await cluster.round()
    cluster.time += preemptor.SLOW_SECONDS - 1
    await cluster.round()
    assert len(cluster.evicted) == 1
    cluster.time += 2
    await cluster.round()
    assert sorted(cluster.evicted) == ["p0", "p1"]
    assert set(cluster.held()) == {"x", "y"}


async def test_victims_that_do_not_end_do_not_add_up_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemptor, "MAX_WITH_SLOW", 2)
    cluster = Preempting(*(builders.node(f"node-{number}", gpus=1) for number in range(4)))
    for number in range(4):
        await cluster.run(f"p{number}", request="1")
    for number in range(4):
        cluster.ask(f"x{number}", request="1")
    for _ in range(8):  # one is slow two rounds later
        await cluster.round()
        cluster.time += preemptor.SLOW_SECONDS
    assert len(cluster.evicted) == 2
    await cluster.end(cluster.evicted[0])
    await cluster.round()
    await cluster.round()
    assert len(cluster.evicted) == 3


async def test_pods_without_victims_do_not_starve_others() -> None:
    cluster = await full(0, 0)
    for number in range(preemptor.MAX_TRIES):
        cluster.ask(f"huge-{number}", priority=20, request="1", memory=f"{200 + number}Gi")
    cluster.ask("fits", request="1")
    await cluster.round()
    assert cluster.evicted == []
    cluster.time += cluster.preemptor.recheck_seconds or 0.0
    assert cluster.time < preemptor.RETRY_SECONDS
    await cluster.round()
    assert len(cluster.evicted) == 1


async def test_a_long_search_ends_and_the_next_one_goes_on() -> None:
    cluster = Preempting(*(builders.node(f"node-{letter}", gpus=1) for letter in "abc"))
    for name in "abc":
        await cluster.run(name, priority=20 if name != "c" else 0, request="1")
    cluster.ask("high", request="1")
    find, seen = cluster.preemptor._finder.find, list[str]()

    async def find_slowly(view: NodeView, *asked: Any, **more: Any) -> Nomination | None:
        seen.append(view.node.name)
        cluster.time += preemptor.SEARCH_SECONDS
        return await find(view, *asked, **more)

    cluster.preemptor._finder.find = find_slowly  # type: ignore[method-assign]
    while not cluster.evicted and len(seen) < 4:
        before = len(seen)
        await cluster.round()
        assert len(seen) == before + 1
        cluster.time += cluster.preemptor.recheck_seconds or 0.0
    assert cluster.evicted == ["c"]
    assert len(set(seen)) == len(seen)


async def test_no_search_is_made_for_a_pod_with_no_lower_priority_running() -> None:
    cluster = await full(5, 5)
    cluster.ask("equal", priority=5, request="1")
    await cluster.round()
    assert cluster.preemptor.recheck_seconds is None


async def test_in_no_minute_are_more_evicted_than_allowed() -> None:
    cluster = Preempting(builders.node("node-a", gpus=6))
    owner = {"kind": "ReplicaSet", "name": "owner", "uid": "owner", "controller": True}
    for number in range(24):
        name = f"p{number}"
        await cluster.arrive(name, request="0.25")
        metadata = {**cluster.pods[name]["metadata"], "ownerReferences": [owner]}
        cluster.pods[name] = {**cluster.pods[name], "metadata": metadata}
    cluster.ask("high", request="1", gpus="6")
    told = await cluster.round()
    assert len(cluster.evicted) == preemptor.MAX_PER_MINUTE
    assert told["high"].endswith("(waits, because 20 pods were evicted within a minute)")
    cluster.time += 59.0
    await cluster.round()
    assert len(cluster.evicted) == preemptor.MAX_PER_MINUTE
    cluster.time += 1.0
    await cluster.round()
    assert sorted(cluster.evicted) == sorted(f"p{number}" for number in range(24))


def when_searched(cluster: Preempting, act: Callable[[], Awaitable[None]]) -> None:
    """Do this once, while the search for victims lets other tasks run."""
    find, done = cluster.preemptor._finder.find, list[bool]()

    async def find_meanwhile(view: NodeView, *asked: Any, **more: Any) -> Nomination | None:
        found = await find(view, *asked, **more)
        if not done:
            done.append(True)
            await act()
        return found

    cluster.preemptor._finder.find = find_meanwhile  # type: ignore[method-assign]


async def test_no_pod_goes_for_one_that_is_deleted_during_the_search() -> None:
    cluster = await full(1, 2)
    cluster.ask("high", request="1")

    async def delete() -> None:
        del cluster.pods["high"]

    when_searched(cluster, delete)
    await cluster.round()
    assert (cluster.evicted, cluster.held()) == ([], {})


@pytest.mark.parametrize("continues", [False, True])
async def test_no_more_pods_go_for_one_that_is_deleted_between_evictions(continues: bool) -> None:
    cluster = Preempting(builders.node("node-a", gpus=1))
    for name in "abcd":
        await cluster.run(name, request="0.25")
    cluster.ask("high", request="1")
    create = cluster.api.create
    if continues:
        cluster.refusing |= {name: api_errors.Unavailable("it is overloaded") for name in "bcd"}
        await cluster.round()
        assert cluster.evicted == ["a"]
        cluster.refusing.clear()
    before = len(cluster.evicted)

    async def create_and_delete(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        made = await create(path, body)
        cluster.pods.pop("high", None)
        return made

    cluster.api.create = create_and_delete  # type: ignore[method-assign]
    cluster.time += preemptor.RETRY_SECONDS + preemptor.SPARED_SECONDS
    await cluster.round()
    assert len(cluster.evicted) == before + 1


async def test_no_pod_goes_if_another_is_placed_on_the_free_part_during_the_search() -> None:
    cluster = Preempting(builders.node("node-a", gpus=1))
    await cluster.run("low", request="0.5")
    cluster.ask("high", request="1")
    when_searched(cluster, functools.partial(cluster.arrive, "new", priority=20, request="0.5"))
    await cluster.round()
    assert cluster.shares() == {"low", "new"}
    assert (cluster.evicted, cluster.held()) == ([], {})
