"""A node needs room for the pod itself, and not only a GPU; pods that are placed and not bound yet count."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

from gpushare import contract, pod
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

ALLOCATABLE = {
    "cpu": "2",
    "memory": "8Gi",
    "pods": "110",
    contract.RESOURCE_PERCENT: "400",
    contract.RESOURCE_MEMORY: "320Gi",
    contract.RESOURCE_IDLE: "256",
}


def describe(cluster: Cluster, **changed: str) -> None:
    """Write the Node's status, as the kubelet of node-a would."""
    cluster.describe("node-a", {**ALLOCATABLE, **changed})


def asking(name: str, *, cpu: str = "1") -> dict[str, Any]:
    made = builders.pod(name, request="0.1")
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


def placed(cluster: Cluster) -> set[str]:
    return {
        manifest["metadata"]["name"] for manifest in cluster.pods() if contract.NODE in pod.annotations_of(manifest)
    }


def test_no_more_pods_are_pinned_than_the_node_has_cpus_for_and_the_next_follows(cluster: Cluster) -> None:
    describe(cluster)
    replica = cluster.start()
    with concurrent.futures.ThreadPoolExecutor(8) as together:
        list(together.map(lambda number: cluster.create(asking(f"pod-{number}")), range(8)))
    until(lambda: len(placed(cluster)) == 2, replica.explain)
    first = placed(cluster)
    waiting = next(f"pod-{number}" for number in range(8) if f"pod-{number}" not in first)
    said = "node-a has 0 of 2 CPUs free, 1 is requested"
    until(lambda: said in pod.annotations_of(cluster.pod(waiting))[contract.REASON], replica.explain)
    cluster.delete(first.pop())
    until(lambda: len(placed(cluster)) == 2, replica.explain)
    assert first < placed(cluster)


def test_two_replicas_see_each_others_pods_before_they_are_bound(cluster: Cluster) -> None:
    describe(cluster)
    for _ in range(2):
        cluster.start()
    for number in range(4):
        cluster.create(asking(f"pod-{number}"))
        until(lambda: cluster.is_settled(), cluster.explain)
    until(lambda: cluster.is_settled() and len(placed(cluster)) == 2, cluster.explain)


def test_node_without_offered_shares_gets_no_pods(cluster: Cluster) -> None:
    describe(cluster, **{contract.RESOURCE_PERCENT: "0"})
    replica = cluster.start()
    waiting = cluster.create(asking("trainer"))
    said = "node-a has free GPUs but no running agent: its kubelet offers no gpushare.io/gpu-percent"
    assert said in pod.annotations_of(waiting)[contract.REASON]
    describe(cluster)
    until(lambda: placed(cluster) == {"trainer"}, replica.explain)


def test_pods_without_shares_use_room_too(cluster: Cluster) -> None:
    describe(cluster)
    cluster.create({**builders.pod("other"), "spec": {**asking("other")["spec"], "nodeName": "node-a"}})
    replica = cluster.start()
    cluster.create_placed(asking("first"))
    cluster.create(asking("second"))
    assert placed(cluster) == {"first"}, replica.explain()
