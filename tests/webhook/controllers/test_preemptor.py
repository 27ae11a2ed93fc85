"""The preemptor on a ledger in memory: who is evicted for whom, how often, and that the place is kept."""

from __future__ import annotations

import asyncio
import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import contract, ledger
from gpushare.cluster import api_client, api_errors
from gpushare.cluster.object_store import Key
from gpushare.gpunode import Gpu, GpuNode
from gpushare.nodefilters import NodeSpec, PodInfo
from gpushare.placement import NodeView
from gpushare.refusal import Cause, Refusal
from tests import builders
from tests.webhook.controllers.gated_pods.ledger_in_memory import Cluster
from webhook import metrics
from webhook.controllers.gated_pods.gated_pods import GatedPodScheduler
from webhook.controllers.preemption import preemptor
from webhook.controllers.preemption.preemptor import Preemptor
from webhook.controllers.preemption.victim_finder import Nomination
from webhook.pods.stored_pod import Pod


class EvictionApi:
    """An API server that evicts: an evicted pod terminates until the test ends it."""

    def __init__(self, pods: dict[str, dict[str, Any]]) -> None:
        self.pods = pods
        self.budgets: list[dict[str, Any]] = []
        self.evicted: list[str] = []
        self.refusing: dict[str, api_errors.ClusterError] = {}  # by name of the pod

    async def get(self, path: str) -> dict[str, Any]:
        name = path.rsplit("/", 1)[1]
        if name not in self.pods:
            raise api_errors.NotFound("there is no such pod", status=404)
        return self.pods[name]

    async def list(
        self, path: str, *, keep: Callable[[api_client.Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        assert path == preemptor.BUDGETS_PATH
        return api_client.ObjectList([keep(item) for item in self.budgets], "1")

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        name, word = path.split("/")[-2:]
        assert word == "eviction"
        if name in self.refusing:
            raise self.refusing[name]
        assert body["deleteOptions"]["preconditions"] == {"uid": f"u-{name}"}
        self.evicted.append(name)
        self.pods[name] = {**self.pods[name], "metadata": {**self.pods[name]["metadata"], "deletionTimestamp": "now"}}
        return {}


class Preempting(Cluster):
    """A cluster in memory with preemption."""

    def __init__(self, *nodes: GpuNode) -> None:
        super().__init__(*nodes)
        self.api = EvictionApi(self.pods)
        self.evicted, self.refusing, self.budgets = self.api.evicted, self.api.refusing, self.api.budgets
        self.events: list[tuple[str, str]] = []
        self.time = 0.0
        self.lead()

    def lead(self) -> None:
        """Start another placer."""
        clock = lambda: self.time  # noqa: E731
        self.preemptor = Preemptor(self.api, self.store, Pods(self), self, metrics.Metrics(), "pack", clock=clock)
        self.scheduler = GatedPodScheduler(self, self.store, self.reservation, self, metrics.Metrics(), preempts=True)

    def record(self, regarding: Mapping[str, Any], reason: str, note: str, **_: Any) -> None:
        assert note
        self.events.append((regarding["name"], reason))

    async def run(self, name: str, *, priority: int = 0, owner: str = "ReplicaSet", **asked: Any) -> None:
        """Create a pod, which has to fit, and place it."""
        self.create(name, priority=priority, **asked)
        reference = {"kind": owner, "name": "owner", "uid": "owner", "controller": True}
        self.pods[name]["metadata"].update(ownerReferences=[reference] if owner else [], labels={"app": name})
        await self.step()
        assert name not in self.waiting()
        self.now += 1

    def ask(self, name: str, *, priority: int = 10, policy: str = "", **asked: Any) -> None:
        self.create(name, priority=priority, **asked)
        if policy:
            self.pods[name]["spec"]["preemptionPolicy"] = policy

    async def round(self) -> dict[str, str]:
        """Do a round with preemption; return the reasons of pods that wait."""
        await self.step()
        waiting = await self.preemptor.reconcile(
            [(self.stored()[name], Refusal(reason)) for name, reason in self.told.items()]
        )
        return {pod.ref.name: why.reason for pod, why in waiting}


class Pods(Mapping[Key, Pod]):
    """The pods of a cluster, as the informer has them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def _all(self) -> dict[Key, Pod]:
        return {Key(pod.ref.namespace, pod.ref.name): pod for pod in self._cluster.stored().values()}

    def __getitem__(self, key: Key) -> Pod:
        return self._all()[key]

    def __iter__(self) -> Any:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def budget(name: str, *, allowed: int) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": f"of-{name}"},
        "spec": {"selector": {"matchLabels": {"app": name}}},
        "status": {"disruptionsAllowed": allowed},
    }


async def full(*priorities: int, gpus: int = 2) -> Preempting:
    """Return a node with a running pod `p0`, `p1` … of each priority, on a GPU each."""
    cluster = Preempting(builders.node("node-a", gpus=gpus))
    for number, priority in enumerate(priorities):
        await cluster.run(f"p{number}", priority=priority, request="1")
    return cluster


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


def leave(cluster: Preempting, name: str) -> None:
    made = cluster.pods[name]
    cluster.pods[name] = {**made, "metadata": {**made["metadata"], "deletionTimestamp": "now"}}


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


async def test_kinds_that_help_nobody_do_not_starve_another() -> None:
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

    def find_slowly(view: NodeView, *asked: Any, **more: Any) -> Nomination | None:
        seen.append(view.node.name)
        cluster.time += preemptor.SEARCH_SECONDS
        return find(view, *asked, **more)

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


SIZES = st.sampled_from(["0.25", "0.5", "1"])
ASKS = st.lists(st.tuples(SIZES, st.integers(0, 3)), min_size=1, max_size=6)


NUMBERS = st.integers(0, 5)


@pytest.mark.slow
@given(ASKS, ASKS, NUMBERS, NUMBERS)
@settings(max_examples=25, deadline=None)
def test_law_each_eviction_is_for_a_higher_priority_and_a_pod_gets_the_place(
    running: list[tuple[str, int]], waiting: list[tuple[str, int]], ending: int, refusing: int
) -> None:
    """One pod is ending at first, and the API server refuses to evict another one for a while."""

    async def story() -> None:
        cluster = Preempting(builders.node("node-a", gpus=2), builders.node("node-b", gpus=1))
        priorities = {}
        for number, (size, priority) in enumerate(running):
            await cluster.arrive(f"r{number}", request=size, priority=priority)
            name = f"r{number}"
            metadata = cluster.pods[name]["metadata"]
            owner = {"kind": "ReplicaSet", "name": "owner", "uid": "owner", "controller": True}
            cluster.pods[name] = {**cluster.pods[name], "metadata": {**metadata, "ownerReferences": [owner]}}
            priorities[name] = priority
        for number, (size, priority) in enumerate(waiting):
            cluster.ask(f"w{number}", request=size, priority=priority)
            priorities[f"w{number}"] = priority
        ends = [name for name in (f"r{ending}",) if name in cluster.pods and name not in cluster.waiting()]
        for name in ends:
            leave(cluster, name)
        cluster.refusing[f"r{refusing}"] = api_errors.Unavailable("Cannot evict pod", status=429)
        for number in range(4 + len(running) + len(waiting)):
            if number == 4:
                cluster.refusing.clear()
            cluster.events.clear()
            before = len(cluster.evicted)
            told = await cluster.round()
            new = cluster.evicted[before:]
            for_whom = {name for name, reason in cluster.events if reason == contract.EVENT_PREEMPTING}
            assert len(for_whom) == bool(new)
            for name in new:
                assert all(priorities[name] < priorities[other] for other in for_whom)
            for name in [*new, *ends]:
                await cluster.end(name)  # its share is free, and kept
            ends = []
            if new:
                waited = set(cluster.waiting())
                await cluster.step()
                # A pod ahead of it in the queue may take the place.
                is_blocked = any("could not be evicted" in told[name] for name in for_whom)
                assert is_blocked or waited - set(cluster.waiting())
            cluster.time += 60.0
        assert len(cluster.evicted) == len(set(cluster.evicted))
        assert cluster.held() == {}

    asyncio.run(story())
