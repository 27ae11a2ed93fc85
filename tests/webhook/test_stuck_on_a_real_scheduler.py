"""Placed pods that the real scheduler cannot bind: they get its message, and are recreated if possible."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from gpushare import contract
from lab import cluster as lab_cluster
from lab import daemon_process
from tests import builders, rights
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


def add_node(cluster: Cluster, node: str) -> None:
    cluster.add_node(builders.node(node))
    cluster.describe(node, ALLOCATABLE)


def asking(name: str, *uuids: str, owned: bool = False) -> dict[str, Any]:
    made = builders.pod(name, request="0.5", uuid=",".join(uuids))
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    if owned:
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "trainers", "uid": "owner-1", "controller": True}
        ]
    return made


def bound(cluster: Cluster, name: str) -> str:
    return str(cluster.pod(name)["spec"].get("nodeName", ""))


def verdict(cluster: Cluster, name: str) -> str:
    """Return the scheduler's message."""
    conditions = cluster.pod(name).get("status", {}).get("conditions") or []
    return next((condition["message"] for condition in conditions if condition.get("reason") == "Unschedulable"), "")


def stop_scheduler(cluster: Cluster) -> None:
    """Stop the scheduler, so that something can happen between placement and binding."""
    lab = cluster.administrator.lab
    assert lab is not None
    pid = daemon_process.pid_of("kube-scheduler", lab.processes)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: daemon_process.pid_of("kube-scheduler", lab.processes) is None)


def start_scheduler(cluster: Cluster) -> None:
    lab = cluster.administrator.lab
    assert lab is not None
    lab_cluster.up(lab.directory, node_count=0, scheduler=True)


def test_scheduler_message_is_reported_and_owned_pod_moves(scheduled: Cluster) -> None:
    scheduled.describe("node-a", ALLOCATABLE)
    for name in ("node-b", "node-c"):
        add_node(scheduled, name)
    started = scheduled.start("--stuck-seconds=2")
    scheduled.create(asking("fine", "GPU-node-b-3"))
    until(lambda: bound(scheduled, "fine") == "node-b", scheduled.explain)  # what we pin, it binds

    stop_scheduler(scheduled)
    scheduled.create_placed(asking("cordoned", "GPU-node-a-0"))
    owned = asking("owned", "GPU-node-a-1", "GPU-node-d-1", owned=True)
    assert scheduled.create_placed(owned)["metadata"]["annotations"][contract.NODE] == "node-a"
    scheduled.create_placed(asking("tainted", "GPU-node-b-0"))
    scheduled.create_placed(asking("crowded", "GPU-node-c-0"))
    scheduled.kubectl("cordon", "node-a")
    scheduled.kubectl("taint", "node", "node-b", "team=red:NoSchedule")
    other = asking("other", "")
    scheduled.create({**builders.pod("other"), "spec": {**other["spec"], "nodeName": "node-c"}})
    scheduled.create({**builders.pod("another"), "spec": {**other["spec"], "nodeName": "node-c"}})
    add_node(scheduled, "node-d")
    start_scheduler(scheduled)

    until(lambda: "owned" not in {pod["metadata"]["name"] for pod in scheduled.pods()}, scheduled.explain)
    names = ("cordoned", "tainted", "crowded")
    until(lambda: all(verdict(scheduled, name) for name in names), scheduled.explain)
    until(lambda: len(scheduled.notes(contract.EVENT_STUCK)) >= 4, scheduled.explain)
    said = scheduled.notes(contract.EVENT_STUCK)
    for name, node, words in (
        ("cordoned", "node-a", "were unschedulable"),
        ("tainted", "node-b", "had untolerated taint"),
        ("crowded", "node-c", "Insufficient cpu"),
    ):
        sentence = verdict(scheduled, name)
        assert words in sentence
        whole = f"was placed on {node}, where the scheduler cannot bind it: {sentence}; a placed pod cannot move: "
        assert any(note.startswith(whole) for note in said), said
    assert any("so that ReplicaSet trainers recreates it" in note for note in said)
    evicted = "evicted, because it could not be bound where it was placed: ReplicaSet trainers recreates it"
    until(lambda: scheduled.notes(contract.EVENT_REPLACED) == [evicted], scheduled.explain)
    used = rights.used_on(scheduled.administrator, contract.WEBHOOK_SERVICE_ACCOUNT)
    assert ("pods/eviction", "create") in used

    again = scheduled.create_placed(owned)  # as its owner would
    assert again["metadata"]["annotations"][contract.NODE] == "node-d"
    until(lambda: bound(scheduled, "owned") == "node-d", scheduled.explain)
    # not recreated, so they only get an Event
    assert set(names) <= {pod["metadata"]["name"] for pod in scheduled.pods()}
    scheduled.kubectl("uncordon", "node-a")
    until(lambda: bound(scheduled, "cordoned") == "node-a", scheduled.explain)
    until(lambda: started.metric("gpushare_placer_stuck_pods") == 2, started.explain)


def test_nominated_pod_is_not_evicted(scheduled: Cluster) -> None:
    scheduled.describe("node-a", ALLOCATABLE)
    started = scheduled.start("--stuck-seconds=1")
    important = {
        "kind": "PriorityClass",
        "apiVersion": "scheduling.k8s.io/v1",
        "metadata": {"name": "important"},
        "value": 9,
    }
    scheduled.kubectl("apply", "-f", "-", input=json.dumps(important))
    stop_scheduler(scheduled)
    urgent = asking("urgent", "GPU-node-a-0", owned=True)
    urgent["spec"]["priorityClassName"] = "important"
    until(lambda: not scheduled.refuses(urgent, "important"), scheduled.explain)
    scheduled.create_placed(urgent)
    lesser = asking("lesser", "")["spec"]
    for name in ("lesser", "other"):  # without a kubelet, what is made to leave stays
        scheduled.create({**builders.pod(name), "spec": {**lesser, "nodeName": "node-a"}})
    start_scheduler(scheduled)
    until(lambda: "nominatedNodeName" in scheduled.pod("urgent").get("status", {}), scheduled.explain)
    until(lambda: bool(verdict(scheduled, "urgent")), scheduled.explain)
    until(lambda: bool(started.metric("gpushare_placer_leads")), started.explain)
    time.sleep(3.0)  # three times the pause before a stuck pod is evicted
    assert scheduled.pod("urgent")["status"]["nominatedNodeName"] == "node-a"
    assert (started.metric("gpushare_placer_stuck_pods"), started.metric("gpushare_placer_replaced_total")) == (0, 0)
    for pod in scheduled.pods():
        if "deletionTimestamp" in pod["metadata"]:
            scheduled.delete(pod["metadata"]["name"])
    until(lambda: bound(scheduled, "urgent") == "node-a", scheduled.explain)


def test_with_the_taint_that_check_names_pods_without_a_share_go_elsewhere(scheduled: Cluster) -> None:
    scheduled.describe("node-a", ALLOCATABLE)
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "plain"}}
    scheduled.kubectl("create", "-f", "-", input=json.dumps(made))
    scheduled.kubectl("patch", "node", "plain", "--type=merge", '--patch={"spec":{"taints":null}}')
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": ALLOCATABLE, "capacity": ALLOCATABLE}
    patch = json.dumps({"status": ready})
    scheduled.kubectl("patch", "node", "plain", "--subresource=status", "--type=merge", f"--patch={patch}")
    scheduled.kubectl("taint", "node", "node-a", "nvidia.com/gpu=present:PreferNoSchedule")
    scheduled.start()  # the scheduler has heard of the taint when that is ready
    for name, request in (("first", "0.5"), ("second", "0.5"), ("third", "0.5")):
        alone = asking(name)
        alone["metadata"]["annotations"] = {}
        alone["spec"]["containers"][0]["resources"]["requests"]["cpu"] = request
        scheduled.create(alone)
        until(lambda name=name: bound(scheduled, name) == "plain", scheduled.explain)  # type: ignore[misc]
    scheduled.create(asking("share", "GPU-node-a-0"))
    until(lambda: bound(scheduled, "share") == "node-a", scheduled.explain)
