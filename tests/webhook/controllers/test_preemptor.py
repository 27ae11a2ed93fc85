"""The preemptor on a ledger in memory: which pods it evicts, and that the nominated pod gets their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gpushare import contract, ledger
from gpushare.cluster import api_errors
from gpushare.cluster.object_store import Key
from gpushare.gpunode import Gpu, GpuNode
from gpushare.nodefilters import NodeSpec, PodInfo
from gpushare.refusal import Refusal
from tests import builders
from tests.webhook.controllers.preempting_cluster import Preempting, full
from webhook.controllers.preemption import preemptor
from webhook.store.ledger_store import UnreachableError


async def test_a_pod_takes_the_place_of_the_lowest_priority_and_keeps_it() -> None:
    cluster = await full(5, 1)
    cluster.ask("high", request="1")
    told = await cluster.round()
    assert cluster.evicted == ["p1"]
    assert ("p1", contract.EVENT_PREEMPTED) in cluster.events
    assert ("high", contract.EVENT_PREEMPTING) in cluster.events
    assert told["high"].endswith("; takes the place of other pods on node-a: default/p1")
    assert cluster.held() == {"high": 0}
    told = await cluster.round()
    assert told["high"].endswith("; takes the place of other pods on node-a, which are ending")
    assert cluster.evicted == ["p1"]  # no second set of victims
    await cluster.end("p1")
    assert cluster.held() == {"high": 100}  # in the same write
    await cluster.arrive("low", request="1")
    assert "low" in cluster.waiting()
    await cluster.round()
    assert cluster.waiting() == ["low"]
    assert cluster.held() == {}


async def test_the_next_placer_evicts_only_those_that_still_have_to_go() -> None:
    cluster = await full()
    for name in ("a", "b"):
        await cluster.run(name, request="0.5", uuid="GPU-node-a-0")
    await cluster.run("c", priority=5, request="1")
    cluster.ask("high", request="1")
    cluster.refusing["b"] = api_errors.Unavailable("Cannot evict pod as it would violate its budget", status=429)
    told = await cluster.round()
    assert cluster.evicted == ["a"]
    assert told["high"].endswith(
        ": default/b, default/a (default/b could not be evicted yet: Cannot evict pod as it would violate its budget)"
    ) or told["high"].endswith("(default/b could not be evicted yet: Cannot evict pod as it would violate its budget)")
    cluster.lead()
    cluster.refusing.clear()
    await cluster.round()
    assert cluster.evicted == ["a", "b"]
    for name in ("a", "b"):
        await cluster.end(name)
    await cluster.round()
    assert cluster.waiting() == []


async def test_a_former_leader_leaves_the_nomination_for_which_the_next_one_evicts() -> None:
    cluster = await full(0, 0)
    cluster.ask("high", request="1")
    await cluster.step()
    waiting = [(cluster.stored()["high"], Refusal("no GPU fits"))]
    former, leads = cluster.preemptor, [True]
    former.leads = lambda: leads[0]
    cluster.lead()
    commit = cluster.store.commit

    async def commit_late(name: str, change: Callable[[GpuNode], GpuNode]) -> GpuNode:
        node = await commit(name, change)
        if leads[0] and any(entry.is_nomination for entry in node.allocations):
            leads[0] = False  # while the write is in flight
            await cluster.preemptor.reconcile(waiting)
        return node

    cluster.store.commit = commit_late  # type: ignore[method-assign]
    await former.reconcile(waiting)
    assert (len(cluster.evicted), cluster.held()) == (1, {"high": 0})


async def test_a_pod_keeps_one_of_two_nominations() -> None:
    cluster = Preempting(builders.node("node-a", gpus=1), builders.node("node-b", gpus=1))
    for name in "ab":
        await cluster.run(name, request="1")
    cluster.ask("high", request="1")
    for number, node in enumerate(("node-b", "node-a")):
        entry = builders.allocation(f"{contract.PREEMPTION_PREFIX}{number}", f"GPU-{node}-0", request=0, memory_gib=0)
        entry = dataclasses.replace(entry, pod=cluster.stored()["high"].ref)
        cluster.store.change(node, lambda stored, entry=entry: ledger.reserve(stored, entry))
    await cluster.round()
    entries = [entry.id for view in cluster.store.views() for entry in view.node.allocations if entry.is_nomination]
    assert (entries, cluster.evicted) == ([f"{contract.PREEMPTION_PREFIX}0"], ["b"])


async def test_nothing_is_kept_if_the_first_eviction_fails_and_another_goes() -> None:
    cluster = await full(1, 2)
    cluster.ask("high", request="1")
    cluster.refusing["p0"] = api_errors.Unavailable("its budget was used up meanwhile", status=429)
    await cluster.round()
    assert (cluster.evicted, cluster.held()) == ([], {})
    cluster.time += preemptor.RETRY_SECONDS + 1
    await cluster.round()
    assert cluster.evicted == ["p1"]


async def test_a_nomination_is_withdrawn_when_its_pod_can_fit_there_no_more() -> None:
    cluster = await full(0, 0)
    cluster.ask("high", request="1")
    await cluster.round()
    cluster.store.change("node-a", lambda node: dataclasses.replace(node, gpus=cordoned(node.gpus)))
    told = await cluster.round()
    assert told["high"].endswith("; takes the place of other pods on node-a, which cannot take it at the moment")
    assert cluster.held() == {"high": 0}  # pods were evicted for this place
    cluster.time += preemptor.UNFIT_SECONDS
    told = await cluster.round()
    assert cluster.held() == {}
    assert "takes the place" not in told["high"]


async def test_a_nomination_that_could_not_be_withdrawn_keeps_no_other_pod_from_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await full(0, 0)
    cluster.ask("high", request="1")
    await cluster.round()
    before = cluster.store.view("node-a")
    assert before is not None
    cluster.store.change("node-a", lambda node: dataclasses.replace(node, gpus=cordoned(node.gpus)))
    await cluster.round()
    cluster.time += preemptor.UNFIT_SECONDS
    with monkeypatch.context() as unreachable:
        unreachable.setattr(cluster.store, "commit", no_connection)
        told = await cluster.round()
    assert cluster.held() == {"high": 0}
    assert told["high"].endswith("; takes the place of other pods on node-a, which cannot take it at the moment")
    # Once its pod is gone and the node can take pods again, there is nothing against another.
    cluster.store.change("node-a", lambda node: dataclasses.replace(node, gpus=before.node.gpus))
    del cluster.pods["high"]
    released = [entry.id for entry in before.node.allocations if entry.is_nomination]
    cluster.store.change("node-a", lambda node: ledger.release(node, released))
    cluster.ask("next", request="1", gpus="2")
    await cluster.round()
    assert len(cluster.evicted) == 2


async def no_connection(name: str, change: object) -> GpuNode:
    raise UnreachableError(f"{name}: no connection")


async def test_pods_beside_the_nominated_gpus_stay_although_another_took_the_cpu() -> None:
    cluster = Preempting(builders.node("node-a", gpus=4))
    cache, made = cluster.store.chooser.cache, builders.node_object("node-a")
    made["status"]["allocatable"].update(cpu="16", memory="64Gi", pods="110")
    cache.put_node_spec("node-a", NodeSpec.from_manifest(made))

    def bind(name: str, manifest: dict[str, Any]) -> None:
        spec = {**manifest["spec"], "nodeName": "node-a"}
        spec["containers"] = [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]
        cache.put(Key("default", name), PodInfo.from_manifest({**manifest, "spec": spec}, "node-a"))

    for number in range(4):
        await cluster.run(f"p{number}", request="1")
        bind(f"p{number}", cluster.pods[f"p{number}"])
    cluster.ask("high", request="1")
    requests = cluster.pods["high"]["spec"]["containers"][0]["resources"]["requests"]
    cluster.pods["high"]["spec"]["containers"][0]["resources"]["requests"] = {**requests, "cpu": "4"}
    await cluster.round()
    (evicted,) = cluster.evicted
    cache.put(Key("default", evicted), None)
    bind("batch", {"metadata": {"name": "batch", "namespace": "default", "uid": "u-batch"}, "spec": {}})
    await cluster.end(evicted)
    told = await cluster.round()
    assert told["high"].endswith("; takes the place of other pods on node-a, which cannot take it at the moment")
    assert cluster.evicted == [evicted]
    cluster.time += preemptor.UNFIT_SECONDS
    await cluster.round()
    assert cluster.held() == {}
    # Another pod that goes there would lose its CPU to others as well.
    cluster.time += preemptor.USELESS_SECONDS - 1
    await cluster.round()
    assert cluster.evicted == [evicted]
    cluster.time += preemptor.RETRY_SECONDS + 1
    await cluster.round()
    assert len(cluster.evicted) == 2


async def test_an_eviction_that_fails_stops_no_other_and_another_pod_goes_instead() -> None:
    cluster = await full()
    for name in "abcd":
        await cluster.run(name, request="0.25", uuid="GPU-node-a-0")
    await cluster.run("e", priority=5, request="1")
    cluster.ask("high", request="0.75")
    await cluster.step()
    refused = api_errors.Unavailable("Cannot evict pod as it would violate its budget", status=429)
    cluster.refusing["c"] = refused
    told = await cluster.round()
    assert sorted(cluster.evicted) == ["b", "d"]
    assert "(default/c could not be evicted yet: Cannot evict" in told["high"]
    await cluster.round()
    assert sorted(cluster.evicted) == ["a", "b", "d"]


async def test_a_nomination_ends_if_no_eviction_succeeds_and_nothing_is_ending() -> None:
    cluster = await full()
    for name in "ab":
        await cluster.run(name, request="0.5", uuid="GPU-node-a-0")
    await cluster.run("c", priority=5, request="1")
    cluster.ask("high", request="1")
    cluster.refusing["b"] = api_errors.Unavailable("Cannot evict pod as it would violate its budget", status=429)
    await cluster.round()
    assert cluster.evicted == ["a"]
    await cluster.end("a")
    for _ in range(8):
        assert "default/b could not be evicted yet" in (await cluster.round())["high"]
        assert cluster.held() == {"high": 50}
        cluster.time += preemptor.UNFIT_SECONDS / 8
    await cluster.round()
    assert cluster.held() == {}


async def test_a_victim_that_is_gone_before_its_share_is_released_counts_as_ended() -> None:
    cluster = await full(0, 0)
    cluster.ask("high", request="1")
    await cluster.round()
    (evicted,) = cluster.evicted
    stored = {Key("default", name): pod for name, pod in cluster.stored().items() if name != evicted}
    cluster.preemptor._finder.pods = stored
    waiting = await cluster.preemptor.reconcile([(stored[Key("default", "high")], Refusal("no GPU fits"))])
    assert waiting[0][1].reason.endswith("which are ending")
    assert cluster.evicted == [evicted]


def cordoned(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    return tuple(dataclasses.replace(gpu, cordoned=True) for gpu in gpus)
