"""`kubectl gpushare defrag --cpu-pods --apply`: a pod without a GPU makes room, and the real scheduler moves it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare import contract
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

HOST = {"memory": "64Gi", "pods": "110"}
GPUS = {contract.RESOURCE_PERCENT: "400", contract.RESOURCE_MEMORY: "320Gi", contract.RESOURCE_IDLE: "256"}


def plain(name: str, cpu: str, node: str = "", owner: dict[str, Any] | None = None) -> dict[str, Any]:
    made = builders.pod(name)
    made["metadata"] |= {"labels": {"app": "service"}, **({"ownerReferences": [owner]} if owner else {})}
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return {**made, "spec": {**made["spec"], **({"nodeName": node} if node else {})}}


def owner_of(cluster: Cluster) -> dict[str, Any]:
    """Return a ReplicaSet of one pod, as an owner reference."""
    template = {"metadata": {"labels": {"app": "service"}}, "spec": builders.pod("service")["spec"]}
    made = {
        "metadata": {"name": "service"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "service"}}, "template": template},
    }
    stored = cluster.administrator.create(f"/apis/apps/v1/namespaces/{cluster.namespace}/replicasets", made)
    uid = stored["metadata"]["uid"]
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "service", "uid": uid, "controller": True}


@contextmanager
def recreated(cluster: Cluster, name: str, successor: dict[str, Any]) -> Iterator[None]:
    """Do what kubelet and owner do after an eviction: end the pod, and create another."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(0.2):
            if cluster.pod(name)["metadata"].get("deletionTimestamp"):
                cluster.create(successor)
                cluster.delete(name)
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def defrag(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kubectl_gpushare", "defrag", "waiting", f"--namespace={cluster.namespace}"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.administrator.kubeconfig)}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, timeout=90, check=False
    )


def test_pod_without_a_gpu_is_evicted_for_one_that_lacks_cpu(scheduled: Cluster) -> None:
    scheduled.describe("node-a", {"cpu": "2", **HOST, **GPUS})
    scheduled.add_plain_node("plain")
    scheduled.describe("plain", {"cpu": "64", **HOST})
    owner = owner_of(scheduled)
    scheduled.create(plain("service-1", "1", "node-a", owner))  # before the webhook, which hears of it by a watch
    scheduled.start()
    waiting = builders.pod("waiting", request="1")
    waiting["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1500m"}}
    scheduled.create(waiting)
    assert contract.ALLOCATION not in scheduled.pod("waiting")["metadata"]["annotations"]

    without = defrag(scheduled)
    assert "service-1" not in without.stdout
    with recreated(scheduled, "service-1", plain("service-2", "1", "", owner)):
        ended = defrag(scheduled, "--cpu-pods", "--apply", "--timeout=30")
    assert ended.returncode == 0, ended.stdout + ended.stderr + scheduled.explain()
    assert f"{scheduled.namespace}/service-1 is on plain now" in ended.stderr
    until(lambda: scheduled.pod("waiting")["spec"].get("nodeName") == "node-a", scheduled.explain)
