"""A recreated pod goes to another node than the one where the scheduler could not bind it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gpushare import codec, contract, request
from gpushare.placement import Placement
from gpushare.pod import Controller
from gpushare.refusal import Refusal
from tests import builders
from tests.scripted_api import ScriptedApi
from webhook.controllers import evictor
from webhook.pods import mutation
from webhook.store import avoided_nodes, occupancy
from webhook.store.memory_store import MemoryStore
from webhook.store.occupancy import Occupancy
from webhook.store.reservation import Reservation

WORDS = "0/2 nodes are available: 1 node(s) exceed max volume count, 1 node(s) didn't match Pod's node affinity."


def made(owner: str = "", *, name: str = "trainer", namespace: str = "default", **annotations: str) -> dict[str, Any]:
    pod = builders.pod(name, namespace=namespace, request="0.5", **annotations)
    pod["metadata"] |= {"uid": f"u-{name}", "resourceVersion": "1"}
    if owner:
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": owner, "controller": True}]
    return pod


def unbound(owner: str = "", *, node: str = "node-a", **status: Any) -> dict[str, Any]:
    pod = made(owner, allocation="a1", node=node)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WORDS}
    return {**pod, "status": {"phase": "Pending", "conditions": [condition], **status}}


def bound(owner: str) -> dict[str, Any]:
    return {**made(owner, allocation="a1", node="node-a"), "spec": {"nodeName": "node-a", "containers": []}}


def leaving(pod: dict[str, Any]) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


class EmptyLedger:
    def has_allocation(self, *_: str) -> bool:
        return False

    def is_full(self, *_: object) -> bool:
        return False

    def hear(self, *_: str) -> None:
        """Ignore pods and storage."""

    named = freed = notify = hear


class Cluster:
    """Two nodes with one GPU each, and the pods of one name, as the webhook's cache shows them."""

    def __init__(self, *nodes: str) -> None:
        self.now = 0.0
        self._api = ScriptedApi()
        self._occupancy = Occupancy(self._api, EmptyLedger(), clock=lambda: self.now)
        gpunodes = [codec.to_document(builders.node(name, gpus=1)) for name in nodes]
        self.store = MemoryStore(gpunodes, avoided=self._occupancy.unbindable.avoided)
        self._versions = itertools.count(1)

    async def show(self, *versions: dict[str, Any] | None) -> None:
        """Show one version of a pod after the other; None deletes it."""
        last: dict[str, Any] | None = None
        for version in versions:
            last, kind = (version, "MODIFIED") if version is not None else (last, "DELETED")
            assert last is not None
            numbered = {**last["metadata"], "resourceVersion": str(next(self._versions))}
            self._api.tell(occupancy.PODS_PATH, {"type": kind, "object": {**last, "metadata": numbered}})
        pods, _ = self._occupancy.informers
        await pods.step()

    def place(self, pod: dict[str, Any]) -> Placement | Refusal:
        return self.store.chooser.place(pod, request.parse(pod), policy="pack")

    def node(self, pod: dict[str, Any]) -> str:
        placement = self.place(pod)
        return placement.node if isinstance(placement, Placement) else ""


@pytest.mark.parametrize("owner", ["job-1", ""], ids=["of a Job", "by its name"])
@pytest.mark.parametrize(
    "end",
    [[None], [leaving], [leaving, None], ["Failed"]],
    ids=["gone", "leaves", "leaves and is gone", "failed"],
)
async def test_recreated_pod_goes_to_another_node(owner: str, end: list[Any]) -> None:
    cluster = Cluster("node-a", "node-b")
    again = made(owner)
    assert cluster.node(again) == "node-a"
    last = unbound(owner)
    ends = {None: None, leaving: leaving(last), "Failed": {**last, "status": {"phase": "Failed"}}}
    await cluster.show(last, *(ends[step] for step in end))
    assert cluster.node(again) == "node-b"
    assert cluster.node(made("other", name="other")) == "node-a"
    assert cluster.node(made(owner, namespace="other")) == "node-a"  # any user can write that UID on a pod
    cluster.now = avoided_nodes.FIRST_SECONDS
    assert cluster.node(again) == "node-b"  # not barred, and the last resort
    cluster.now += avoided_nodes.LAST_RESORT_SECONDS
    assert cluster.node(again) == "node-a"


@pytest.mark.parametrize(
    "after",
    [
        [bound("job-1"), None],
        [unbound("job-1", nominatedNodeName="node-a"), None],
        [made("job-1", allocation="a1", node="node-a"), None],
        [unbound("job-1")],
    ],
    ids=["was bound", "others are made to leave for it", "was let try again", "is there"],
)
async def test_pods_that_prove_nothing_do_not_exclude_a_node(after: list[Any]) -> None:
    cluster = Cluster("node-a", "node-b")
    await cluster.show(unbound("job-1"), *after)
    assert cluster.node(made("job-1")) == "node-a"


async def test_node_where_a_pod_was_bound_is_no_longer_excluded() -> None:
    cluster = Cluster("node-a", "node-b")
    await cluster.show(unbound("job-1"), None)
    assert cluster.node(made("job-1")) == "node-b"
    await cluster.show(unbound("job-1"), bound("job-1"))
    assert cluster.node(made("job-1")) == "node-a"


async def test_refusal_quotes_the_scheduler_without_another_node() -> None:
    cluster = Cluster("node-a")
    await cluster.show(unbound("job-1"), None)
    refusal = cluster.place(made("job-1"))
    assert isinstance(refusal, Refusal)
    said = f"node-a is excluded for a while, because a pod of Job train could not be bound to it; the scheduler said: {WORDS}"
    assert said in refusal.reason
    assert refusal.word == "node"
    unfit = cluster.store.chooser.node_filter(made("job-1"))("node-a")
    assert unfit is not None
    assert unfit in said
    cluster.now = avoided_nodes.FIRST_SECONDS
    assert cluster.node(made("job-1")) == "node-a"


def test_failing_node_is_excluded_for_longer_each_time() -> None:
    now = [0.0]
    failures = avoided_nodes.Unbindable(lambda: now[0])
    maker, pauses = ("default", "job-1"), []
    for _ in range(7):
        failures.deleted(maker, "node-a", "why")
        began = now[0]
        while failures.avoided(made("job-1")).blocked:
            now[0] += 60.0
        pauses.append(now[0] - began)
    assert pauses == [120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    assert (avoided_nodes.FIRST_SECONDS, avoided_nodes.MAX_SECONDS) == (
        evictor.OWNER_PAUSE_SECONDS,
        evictor.MAX_OWNER_PAUSE_SECONDS,
    )
    failures.was_bound(maker, "node-a")
    assert failures.avoided(made("job-1")) == avoided_nodes.NO_AVOIDED


async def test_repeatedly_evicted_pod_tries_all_nodes() -> None:
    """At the rate of evictions, whose pauses grow."""
    names = [f"node-{letter}" for letter in "abcde"]
    cluster, pace, owner, tried = (
        Cluster(*names),
        evictor.EvictionRate(),
        Controller("Job", "train", "job-1"),
        [],
    )
    while len(tried) < len(names):
        tried.append(cluster.node(made("job-1")))
        cluster.now += 60.0 + pace.wait_seconds(owner, now=cluster.now + 60.0)
        pace.evicted(owner, now=cluster.now)
        await cluster.show(unbound("job-1", node=tried[-1]), None)
    assert sorted(tried) == names


def test_oldest_owners_are_forgotten_beyond_the_limit() -> None:
    failures = avoided_nodes.Unbindable(lambda: 0.0)
    for number in range(avoided_nodes.MAX_MAKERS + 1):
        failures.deleted(("default", f"job-{number}"), "node-a", "why")
    assert failures.avoided(made("job-0")) == avoided_nodes.NO_AVOIDED
    assert failures.avoided(made("job-1")).blocked == {"node-a": "why"}


async def test_written_change_avoids_the_excluded_node() -> None:
    cluster = Cluster("node-a", "node-b")
    await cluster.show(unbound("job-1"), None)
    pod = made("job-1")
    outcome = await Reservation(cluster.store, policy="pack").reserve(
        pod, request.parse(pod), builders.allocation().pod
    )
    assert isinstance(outcome, mutation.Placed)
    assert outcome.node == "node-b"
    on_a = cluster.store.view("node-a")
    assert on_a is not None
    assert isinstance(cluster.store.chooser.place_on(on_a, pod, request.parse(pod), policy="pack"), Refusal)
    assert contract.ALLOCATION not in pod["metadata"]["annotations"]
