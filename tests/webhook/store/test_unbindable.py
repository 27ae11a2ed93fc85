"""What is recreated goes to another node than the one where the scheduler could not bind it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from gpushare import codec, contract, request
from gpushare.cluster import api_client
from gpushare.cluster import object_store as objects
from gpushare.placement import Placement
from gpushare.pod import Controller
from gpushare.refusal import Refusal
from tests import builders
from webhook.controllers import unschedulable_pods
from webhook.pods import mutation
from webhook.store import occupancy, unbindable
from webhook.store.memory_store import MemoryStore
from webhook.store.occupancy import Occupancy
from webhook.store.reservation import Reservation

WORDS = "0/2 nodes are available: 1 node(s) exceed max volume count, 1 node(s) didn't match Pod's node affinity."
KEY = objects.Key("default", "trainer")


def made(owner: str = "", *, name: str = "trainer", namespace: str = "default", **annotations: str) -> dict[str, Any]:
    one = builders.pod(name, namespace=namespace, request="0.5", **annotations)
    one["metadata"] |= {"uid": f"u-{name}", "resourceVersion": "1"}
    if owner:
        one["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "uid": owner, "controller": True}]
    return one


def unbound(owner: str = "", *, node: str = "node-a", **status: Any) -> dict[str, Any]:
    one = made(owner, allocation="a1", node=node)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WORDS}
    return {**one, "status": {"phase": "Pending", "conditions": [condition], **status}}


def leaving(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "metadata": {**one["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


class Cluster:
    """Two nodes of one GPU each; the pods of one name, as the webhook's copy shows them."""

    def __init__(self, *nodes: str) -> None:
        self.now = 0.0
        self.store = MemoryStore([codec.to_document(builders.node(name, gpus=1)) for name in nodes])
        self.pods = Occupancy(mock.create_autospec(api_client.ApiClient), clock=lambda: self.now)
        self.store._chooser.avoided = self.pods.unbindable.avoided

    def show(self, *versions: dict[str, Any] | None) -> None:
        """One version of the pod after the other; None: it is gone."""
        before: dict[str, Any] | None = None
        for version in versions:
            after = None if version is None else occupancy.kept(version)
            kind = objects.ChangeType.MODIFIED  # nobody looks at it
            self.pods._pod_changed(objects.Delta(kind, KEY, before, after))
            before = after

    def place(self, one: dict[str, Any]) -> Placement | Refusal:
        return self.store.place(one, request.parse(one), policy="pack")

    def node(self, one: dict[str, Any]) -> str:
        found = self.place(one)
        return found.node if isinstance(found, Placement) else ""


@pytest.mark.parametrize("owner", ["job-1", ""], ids=["of a Job", "by its name"])
@pytest.mark.parametrize(
    "end",
    [[None], [leaving], [leaving, None], ["Failed"]],
    ids=["gone", "leaves", "leaves and is gone", "failed"],
)
def test_what_is_made_anew_goes_to_another_node(owner: str, end: list[Any]) -> None:
    cluster = Cluster("node-a", "node-b")
    again = made(owner)
    assert cluster.node(again) == "node-a"
    last = unbound(owner)
    ends = {None: None, leaving: leaving(last), "Failed": {**last, "status": {"phase": "Failed"}}}
    cluster.show(last, *(ends[one] for one in end))
    assert cluster.node(again) == "node-b"
    assert cluster.node(made("other", name="other")) == "node-a"
    assert cluster.node(made(owner, namespace="other")) == "node-a"  # whoever writes that uid on a pod
    cluster.now = unbindable.FIRST_SECONDS
    assert cluster.node(again) == "node-b"  # not barred, and the last resort
    cluster.now += unbindable.LAST_SECONDS
    assert cluster.node(again) == "node-a"


@pytest.mark.parametrize(
    "after",
    [
        [{**made("job-1", allocation="a1", node="node-a"), "spec": {"nodeName": "node-a", "containers": []}}, None],
        [unbound("job-1", nominatedNodeName="node-a"), None],
        [made("job-1", allocation="a1", node="node-a"), None],
        [unbound("job-1")],
    ],
    ids=["was bound", "others are made to leave for it", "was let try again", "is there"],
)
def test_these_do_not_count(after: list[Any]) -> None:
    cluster = Cluster("node-a", "node-b")
    cluster.show(unbound("job-1"), *after)
    assert cluster.node(made("job-1")) == "node-a"


def test_where_no_other_node_will_do_the_refusal_says_what_the_scheduler_said() -> None:
    cluster = Cluster("node-a")
    cluster.show(unbound("job-1"), None)
    refusal = cluster.place(made("job-1"))
    assert isinstance(refusal, Refusal)
    said = f"node-a could not take a pod of Job train before, and is left out for a while; the scheduler said: {WORDS}"
    assert said in refusal.reason
    assert refusal.word == "node"
    unfit = cluster.store.unfit(made("job-1"))("node-a")
    assert unfit is not None
    assert unfit in said
    cluster.now = unbindable.FIRST_SECONDS
    assert cluster.node(made("job-1")) == "node-a"


def test_a_node_that_fails_again_is_left_out_for_longer_and_one_that_does_not_is_forgotten() -> None:
    now = [0.0]
    found = unbindable.Unbindable(lambda: now[0])
    maker, pauses = ("default", "job-1"), []
    for _ in range(7):
        found.left(maker, "node-a", "why")
        began = now[0]
        while found.avoided(made("job-1")).barred:
            now[0] += 60.0
        pauses.append(now[0] - began)
    assert pauses == [120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    assert (unbindable.FIRST_SECONDS, unbindable.MOST_SECONDS) == (
        unschedulable_pods.OWNER_PAUSE_SECONDS,
        unschedulable_pods.MOST_OWNER_PAUSE_SECONDS,
    )
    found.bound(maker, "node-a")
    assert found.avoided(made("job-1")) == unbindable.NOTHING


def test_who_is_evicted_from_one_node_after_the_other_tries_them_all() -> None:
    """By the pace of evictions, of which each is later than the last."""
    names = [f"node-{letter}" for letter in "abcde"]
    cluster, pace, owner, tried = (
        Cluster(*names),
        unschedulable_pods.EvictionRate(),
        Controller("Job", "train", "job-1"),
        [],
    )
    while len(tried) < len(names):
        tried.append(cluster.node(made("job-1")))
        cluster.now += 60.0 + pace.wait_seconds(owner, now=cluster.now + 60.0)
        pace.evicted(owner, now=cluster.now)
        cluster.show(unbound("job-1", node=tried[-1]), None)
    assert sorted(tried) == names


def test_of_very_many_makers_the_oldest_are_forgotten() -> None:
    found = unbindable.Unbindable(lambda: 0.0)
    for number in range(unbindable.MOST_MAKERS + 1):
        found.left(("default", f"job-{number}"), "node-a", "why")
    assert found.avoided(made("job-0")) == unbindable.NOTHING
    assert found.avoided(made("job-1")).barred == {"node-a": "why"}


async def test_the_change_that_is_written_goes_nowhere_else_either() -> None:
    cluster = Cluster("node-a", "node-b")
    cluster.show(unbound("job-1"), None)
    one = made("job-1")
    outcome = await Reservation(cluster.store, policy="pack").reserve(
        one, request.parse(one), builders.allocation().pod
    )
    assert isinstance(outcome, mutation.Placed)
    assert outcome.node == "node-b"
    on_a = cluster.store.view("node-a")
    assert on_a is not None
    assert isinstance(cluster.store.place_on(on_a.node, one, request.parse(one), policy="pack"), Refusal)
    assert contract.ALLOCATION not in one["metadata"]["annotations"]
