"""Turns on a ledger in memory: gangs whole or not at all, and nobody passed over for ever."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import codec, contract, ledger
from gpushare import request as requests
from gpushare.allocation import PodRef
from gpushare.gpunode import GpuNode
from gpushare.nodefilters import share_resources
from gpushare.request import Request
from tests import builders
from webhook.controllers.allocations import due_changes
from webhook.controllers.gated_pods import backfill, fairness, gang, gated_pods
from webhook.controllers.gated_pods.pod_index import PodIndex
from webhook.pods import mutation
from webhook.pods.stored_pod import Pod
from webhook.store import backfill_reservation, unbindable
from webhook.store.memory_store import MemoryStore
from webhook.store.reservation import Reservation

START = 1_767_225_600.0  # 2026-01-01


class Cluster:
    """Pods and a ledger; what the API server, the allocation controller and the gates would do is done at once."""

    def __init__(self, *nodes: GpuNode, bound: backfill.Bound = backfill.DEFAULT) -> None:
        self.store = MemoryStore([codec.to_document(node) for node in nodes])
        self.pods: dict[str, dict[str, Any]] = {}
        self.index, self.seen = PodIndex(), dict[str, Pod]()
        self.read = dict[str, tuple[dict[str, Any], Pod]]()
        self.now = START
        self.told: dict[str, str] = {}
        self.order: list[str] = []  # in which they were placed
        self.reservation = Reservation(self.store, policy="pack")
        self.turns = gated_pods.GatedPodScheduler(
            self.store,
            self.reservation,
            opens=self.open,
            still_gated=self.still_gated,
            warns=lambda pod, sentence: self.warned.update({pod.ref.name: sentence}),
            bound=bound,
        )
        self.warned: dict[str, str] = {}

    def stored(self) -> dict[str, Pod]:
        """As the informer shows them: what has not changed is the same object."""
        before = self.read
        self.read = {
            name: before[name] if name in before and before[name][0] is item else (item, Pod.of(item))
            for name, item in self.pods.items()
        }
        return {name: pod for name, (_, pod) in self.read.items()}

    async def open(self, pod: Pod, request: Request, placed: mutation.Placed) -> None:
        name = pod.ref.name
        self.pods[name] = dict(mutation.open_gate(self.pods[name], request, placed))
        self.order.append(name)

    async def still_gated(self, pods: Collection[Pod]) -> list[str]:
        return [pod.ref.uid for pod in pods]

    def create(self, name: str, *, priority: int = 0, **asked: str) -> None:
        made = builders.pod(name, **asked)
        hours, rest = divmod(int(self.now - START), 3600)
        created = f"2026-01-01T{hours:02}:{rest // 60:02}:{rest % 60:02}Z"
        made["metadata"].update(uid=f"u-{name}", creationTimestamp=created)
        made["spec"].update(priority=priority, schedulingGates=[{"name": contract.SCHEDULING_GATE}])
        resources = share_resources.resources(requests.parse(made).demands[0], "main")
        made["spec"]["containers"][0]["resources"] = {"limits": resources, "requests": resources}
        self.pods[name] = made

    async def arrive(self, name: str, **asked: str) -> None:
        """As at admission: placed at once if there is room, whoever waits."""
        self.create(name, **asked)
        pod = self.stored()[name]
        assert isinstance(pod.request, Request)
        outcome = await self.reservation.reserve(pod.manifest, pod.request, pod.ref)
        if isinstance(outcome, mutation.Placed):
            await self.open(pod, pod.request, outcome)

    async def end(self, name: str) -> None:
        """The pod ends; its share is released and what is held grows, in one write."""
        one = self.pods.pop(name)
        asked = {pod.ref.uid: pod.request for pod in self.stored().values() if isinstance(pod.request, Request)}

        def change(node: GpuNode) -> GpuNode:
            ids = [entry.id for entry in node.allocations if entry.pod.uid == one["metadata"]["uid"]]
            return backfill_reservation.grown(ledger.release(node, ids), asked)

        for view in list(self.store.views()):
            self.store.change(view.node.name, change)

    async def step(self) -> None:
        stored = self.stored()
        for name in self.seen.keys() | stored.keys():
            if self.seen.get(name) is not stored.get(name):
                self.index.pod(self.seen.get(name), stored.get(name))
        self.seen = stored
        arranged = gang.arrange(stored.values())
        self.told = {
            pod.ref.name: refusal.reason for pod, refusal in await self.turns.take(self.index, arranged, now=self.now)
        }
        nodes = [view.node for view in self.store.views()]
        assert [sentence for node in nodes for sentence in ledger.violations(node)] == []
        for entry in due_changes.judge(nodes, self.stored().values(), now=0.0).release:
            self.store.change(entry.node, lambda node, entry=entry: ledger.release(node, [entry.allocation.id]))

    def waiting(self) -> list[str]:
        return [name for name, one in self.pods.items() if contract.ALLOCATION not in one["metadata"]["annotations"]]

    def shares(self) -> set[str]:
        entries = [entry for view in self.store.views() for entry in view.node.allocations]
        return {entry.pod.name for entry in entries if not entry.is_hold}

    def held(self) -> dict[str, int]:
        entries = [entry for view in self.store.views() for entry in view.node.allocations]
        return {
            entry.pod.name: sum(share.request_percent for share in entry.shares) for entry in entries if entry.is_hold
        }

    def others_where_held(self, name: str) -> dict[str, int]:
        """Per GPU on which something is held for this pod: compute of the shares given there."""
        entries = [entry for view in self.store.views() for entry in view.node.allocations]
        uuids = {uuid for entry in entries if entry.is_hold and entry.pod.name == name for uuid in entry.gpu_uuids}
        return {
            uuid: sum(
                share.request_percent
                for entry in entries
                if not entry.is_hold
                for share in entry.shares
                if uuid in share.gpu_uuids
            )
            for uuid in uuids
        }


async def test_a_gang_is_placed_whole_across_nodes() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2), builders.node("node-b", gpus=2))
    for number in range(4):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="4")
    await cluster.step()
    assert cluster.waiting() == []
    assert sum(len(view.node.allocations) for view in cluster.store.views()) == 4


@pytest.mark.parametrize(
    ("request_", "gpus", "apart"),
    [("0.6", 1, True), ("0.6", 2, False), ("1", 1, False), ("0.5", 1, False)],
    ids=["two nodes", "one node", "whole GPUs", "one GPU"],
)
async def test_a_gang_that_shares_gpus_of_several_nodes_is_warned(request_: str, gpus: int, apart: bool) -> None:
    cluster = Cluster(builders.node("node-a", gpus=gpus), builders.node("node-b", gpus=gpus))
    for number in range(2):
        cluster.create(f"worker-{number}", request=request_, group="ring", group_size="2")
    await cluster.step()
    assert len(cluster.order) == 2
    sentence = 'its group "ring" shares GPUs on 2 nodes: each node gives turns by itself'
    assert [name for name, said in cluster.warned.items() if said.startswith(sentence)] == (
        ["worker-0", "worker-1"] if apart else []
    )


async def test_a_gang_that_does_not_fit_holds_nothing_and_says_who_did_not_fit() -> None:
    cluster = Cluster(builders.node("node-a", gpus=3))
    for number in range(4):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="4")
    await cluster.step()
    assert cluster.shares() == set()
    assert cluster.told["worker-3"].startswith("no GPU fits 1 GPU with 100% of the memory: of 3 GPUs on 1 node")
    assert cluster.told["worker-0"].startswith('its group "ring" waits for worker-3: no GPU fits')


async def test_two_gangs_do_not_wait_for_each_other() -> None:
    cluster = Cluster(builders.node("node-a", gpus=4))
    for number in range(3):
        for group in ("red", "blue"):
            cluster.create(f"{group}-{number}", request="1", group=group, group_size="3")
    await cluster.step()
    placed = {name for name in cluster.pods if name not in cluster.waiting()}
    assert placed == {"blue-0", "blue-1", "blue-2"}
    for name in placed:
        await cluster.end(name)
    await cluster.step()
    assert cluster.waiting() == []


async def test_the_large_members_are_placed_first() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2))
    for name, request in (("a", "0.5"), ("b", "0.5"), ("c", "1")):
        cluster.create(name, request=request, group="mixed", group_size="3")
    await cluster.step()
    assert cluster.waiting() == []


async def test_what_a_placer_left_of_a_gang_is_finished_by_the_next() -> None:
    cluster = Cluster(builders.node("node-a", gpus=4))
    for number in range(3):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="3")
    for number in range(2):  # it ended after two of three reservations
        entry = builders.allocation(
            f"a{number}", f"GPU-node-a-{number}", request=100, memory_gib=80, reserved_until=60.0
        )
        entry = dataclasses.replace(entry, pod=PodRef("default", f"worker-{number}", f"u-worker-{number}"))
        cluster.store.change("node-a", lambda node, entry=entry: ledger.reserve(node, entry))
    await cluster.step()
    assert cluster.waiting() == []
    assert cluster.pods["worker-0"]["metadata"]["annotations"][contract.ALLOCATION] == "a0"


@pytest.mark.parametrize("missing", ["member", "room"])
async def test_what_a_placer_left_of_a_gang_that_cannot_be_finished_is_given_back(missing: str) -> None:
    cluster = Cluster(builders.node("node-a", gpus=2))
    for number in range(2 if missing == "member" else 3):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="3")
    entry = builders.allocation("a0", "GPU-node-a-0", request=100, memory_gib=80, reserved_until=60.0)
    entry = dataclasses.replace(entry, pod=PodRef("default", "worker-0", "u-worker-0"))
    cluster.store.change("node-a", lambda node: ledger.reserve(node, entry))
    await cluster.step()
    assert cluster.shares() == set()
    assert len(cluster.waiting()) == len(cluster.pods)


async def test_a_gang_that_was_placed_is_opened_although_it_is_no_longer_whole() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2))
    for number in range(2):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="3")
    entry = builders.allocation("a0", "GPU-node-a-0", request=100, memory_gib=80)  # settled: all three had one
    entry = dataclasses.replace(entry, pod=PodRef("default", "worker-0", "u-worker-0"))
    cluster.store.change("node-a", lambda node: ledger.reserve(node, entry))
    await cluster.step()
    assert cluster.waiting() == ["worker-1"]


async def test_a_large_pod_is_passed_over_only_so_often() -> None:
    cluster = Cluster(builders.node("node-a", gpus=1), bound=backfill.Bound(patience_seconds=60))
    await cluster.arrive("small-x", request="0.5")
    await cluster.arrive("small-y", request="0.5")
    cluster.now += 1
    cluster.create("large", request="1")
    await cluster.step()
    assert cluster.held() == {}
    await cluster.end("small-x")
    cluster.now += 1
    await cluster.arrive("passer", request="0.5")
    cluster.now += 61
    await cluster.step()
    assert cluster.held() == {"large": 0}
    assert cluster.told["large"].endswith("; what comes free there is held for it on node-a")
    await cluster.end("small-y")
    assert cluster.held() == {"large": 50}
    cluster.now += 1
    await cluster.arrive("late", request="0.25")
    await cluster.step()
    assert "late" in cluster.waiting()
    assert cluster.told["late"].startswith("gives way to default/large, which has waited for longer")
    await cluster.end("passer")
    await cluster.step()
    assert cluster.waiting() == ["late"]
    assert cluster.held() == {}


async def test_who_is_not_passed_over_holds_nothing() -> None:
    cluster = Cluster(builders.node("node-a", gpus=1), bound=backfill.Bound(patience_seconds=1))
    await cluster.arrive("small", request="0.5")
    cluster.now += 1
    cluster.create("large", request="1")
    cluster.now += 1000
    await cluster.step()
    assert cluster.held() == {}


async def test_for_what_could_run_nowhere_nothing_is_held() -> None:
    cluster = Cluster(builders.node("node-a", gpus=1), bound=backfill.Bound(patience_seconds=0, passes=1))
    cluster.create("impossible", request="1", gpus="2")
    cluster.now += 1
    await cluster.arrive("small", request="0.5")
    await cluster.step()
    assert cluster.held() == {}


async def test_where_it_could_run_is_searched_again_although_a_clock_was_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(builders.node("node-a", gpus=1), bound=backfill.Bound(patience_seconds=0, passes=1))
    searched: list[int] = []
    choose = backfill_reservation.choose
    monkeypatch.setattr(
        backfill_reservation, "choose", lambda *args, **more: searched.append(1) or choose(*args, **more)
    )
    cluster.create("impossible", request="1", gpus="2")
    cluster.now += 1
    await cluster.arrive("small", request="0.5")
    for _ in range(2):
        await cluster.step()
    assert len(searched) == 1
    cluster.now -= 3600.0
    await cluster.step()
    assert len(searched) == 2


async def test_a_more_important_pod_takes_what_is_held_for_a_lesser() -> None:
    cluster = Cluster(builders.node("node-a", gpus=2), bound=backfill.Bound(patience_seconds=0, passes=1))
    await cluster.arrive("one", request="0.5")
    cluster.create("large", request="1", gpus="2")
    cluster.now += 1
    await cluster.arrive("two", request="0.5")
    await cluster.step()
    assert cluster.held() == {"large": 100}
    cluster.create("urgent", request="1", priority=10)
    await cluster.step()
    assert cluster.waiting() == ["large"]


async def test_a_gang_that_was_passed_over_gets_its_turn() -> None:
    nodes = (builders.node("node-a", gpus=1), builders.node("node-b", gpus=1))
    cluster = Cluster(*nodes, bound=backfill.Bound(patience_seconds=0, passes=1))
    for name in ("w", "x", "y", "z"):
        await cluster.arrive(name, request="0.5")
    cluster.now += 1
    for number in range(2):
        cluster.create(f"worker-{number}", request="1", group="ring", group_size="2")
    await cluster.end("w")
    cluster.now += 1
    await cluster.arrive("passer", request="0.5")
    await cluster.step()
    assert cluster.held() == {"worker-0": 0, "worker-1": 0}
    for name in ("x", "y", "z", "passer"):
        await cluster.end(name)
        cluster.now += 1
        await cluster.arrive(f"after-{name}", request="0.5")
        await cluster.step()
    assert {"worker-0", "worker-1"} <= set(cluster.order)
    assert not {"worker-0", "worker-1"} & set(cluster.waiting())


SMALL = st.lists(
    st.tuples(st.sampled_from(["0.25", "0.5", "0.75", "1"]), st.integers(1, 6), st.booleans()), min_size=40, max_size=40
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(stream=SMALL, gpus=st.integers(1, 3), large=st.integers(1, 3))
async def test_law_whoever_fits_on_an_empty_cluster_is_placed_after_a_bounded_number_of_passes(
    stream: list[tuple[str, int, bool]], gpus: int, large: int
) -> None:
    """Whatever comes, if every pod ends: once it is entitled, on its GPUs there are ever fewer others."""
    bound = backfill.Bound(patience_seconds=1e9, passes=5)
    cluster = Cluster(builders.node("node-a", gpus=gpus), builders.node("node-b", gpus=1), bound=bound)
    for number in range(4 * (gpus + 1)):
        await cluster.arrive(f"first-{number}", request="0.25")
    cluster.now += 1
    cluster.create("large", request="1", gpus=str(min(large, gpus)))
    ends = {f"first-{number}": number % 7 for number in range(4 * (gpus + 1))}
    others: dict[str, int] | None = None
    since = len(cluster.order)
    for tick, (request, life, at_admission) in enumerate(stream):
        cluster.now += 1
        for name in [name for name, at in ends.items() if at <= tick and name not in cluster.waiting()]:
            del ends[name]
            await cluster.end(name)
        name = f"pod-{tick}"
        if at_admission:
            await cluster.arrive(name, request=request)
        else:
            cluster.create(name, request=request)
        ends[name] = tick + life
        passed = len(cluster.order) - since
        await cluster.step()
        if "large" in cluster.order:
            break
        if "large" in cluster.held():
            now = cluster.others_where_held("large")
            assert others is None or all(now[uuid] <= others[uuid] for uuid in now), (others, now)
            others = now
        else:
            assert others is None
            assert passed < bound.passes
    assert "large" in cluster.order


async def test_those_that_grow_where_they_are_pass_over_the_ones_ahead_of_them_too() -> None:
    cluster = Cluster(builders.node(gpus=1), bound=backfill.Bound(passes=2))
    await cluster.arrive("large", request="0.6")
    cluster.create("waits", priority=1, request="0.5")
    await cluster.step()
    for _ in range(2):
        assert cluster.held() == {}
        cluster.turns.grew(cluster.stored()["large"])
    await cluster.step()
    assert cluster.held() == {"waits": 40}


async def test_one_namespace_has_one_hold_at_a_time() -> None:
    cluster = Cluster(builders.node(gpus=2), bound=backfill.Bound(passes=1))
    for name in ("a", "b"):
        await cluster.arrive(name, request="0.6")
    for name, namespace in (("first", "default"), ("second", "default"), ("third", "other")):
        cluster.now += 1
        cluster.create(name, namespace=namespace, request="1")
    await cluster.step()
    cluster.now += 1
    await cluster.arrive("small", request="0.1")
    await cluster.step()
    assert set(cluster.held()) == {"first", "third"}


async def test_very_many_of_one_namespace_keep_nobody_else_waiting_and_are_all_told() -> None:
    cluster = Cluster(builders.node(gpus=1))
    await cluster.arrive("there", request="0.5")
    for number in range(fairness.TRIES + 10):
        cluster.create(f"many-{number}", request="0.6", memory=f"{number + 1}Gi")
    cluster.now += 1
    cluster.create("late", namespace="other", request="0.2")
    await cluster.step()
    assert cluster.order == ["there", "late"]
    later = [name for name, said in cluster.told.items() if "it has its turn soon" in said]
    assert len(cluster.told) == fairness.TRIES + 10
    assert len(later) == 10
    assert cluster.turns.is_behind
    await cluster.step()
    assert [name for name, said in cluster.told.items() if "it has its turn soon" in said] == []


async def test_one_that_was_not_tried_keeps_the_reason_that_it_has() -> None:
    cluster = Cluster(builders.node(gpus=1))
    await cluster.arrive("there", request="0.5")
    for number in range(fairness.TRIES + 10):
        cluster.create(f"many-{number}", request="0.6", memory=f"{number + 1}Gi")
        cluster.pods[f"many-{number}"]["metadata"]["annotations"][contract.REASON] = f"as before, {number}"
    await cluster.step()
    assert sum(said.startswith("as before") for said in cluster.told.values()) == 10


async def test_a_round_ends_early_when_one_comes_of_whose_namespace_nobody_was_there() -> None:
    cluster = Cluster(builders.node(gpus=1))
    await cluster.arrive("there", request="0.5")
    for number in range(6):
        cluster.create(f"many-{number}", request="0.6", memory=f"{number + 1}Gi")
        cluster.create(f"other-{number}", namespace="other", request="0.7", memory=f"{number + 1}Gi")
    tried: list[str] = []
    place = cluster.store.place

    def reporter(manifest: dict[str, Any], *arguments: Any, **more: Any) -> Any:
        tried.append(manifest["metadata"]["name"])
        if len(tried) == 1:
            cluster.turns.came("default")  # of one that is there already nothing is to be done
        if len(tried) == 2:
            cluster.turns.came("new")
        return place(manifest, *arguments, **more)

    cluster.store.place = reporter  # type: ignore[method-assign]
    await cluster.step()
    assert sorted(tried) == ["many-0", "other-0"]  # each namespace has had a turn
    assert len(cluster.told) == 12
    assert cluster.turns.is_behind
    cluster.create("late", namespace="new", request="0.2")
    await cluster.step()
    assert cluster.order == ["there", "late"]
    assert len(set(tried)) == 13
    assert not cluster.turns.is_behind


async def test_for_one_that_makes_no_sense_any_more_nothing_is_held() -> None:
    cluster = Cluster(builders.node(gpus=1), bound=backfill.Bound(passes=1))
    await cluster.arrive("there", request="0.6")
    cluster.create("large", request="1")
    cluster.now += 1
    await cluster.arrive("small", request="0.2")
    await cluster.step()
    assert set(cluster.held()) == {"large"}
    cluster.pods["large"] = copy.deepcopy(cluster.pods["large"])
    cluster.pods["large"]["metadata"]["annotations"][contract.REQUEST] = "0.9"
    await cluster.step()
    assert cluster.told["large"].startswith("its gpushare.io annotations no longer agree")
    assert cluster.held() == {}


async def test_who_may_not_go_to_a_node_keeps_nobody_like_it_from_there() -> None:
    cluster = Cluster(builders.node(gpus=1))
    for name in ("barred", "other"):
        cluster.create(name, request="0.2")
        cluster.now += 1
    barred = unbindable.Avoided({"node-a": "could not take it before"}, frozenset())
    cluster.store._chooser.avoided = lambda one: barred if one["metadata"]["name"] == "barred" else unbindable.NOTHING
    await cluster.step()
    assert cluster.order == ["other"]
    assert "node-a could not take it before" in cluster.told["barred"]
