"""Placeholders with a real scheduler, which preempts one whose GPU has no share before one whose GPU has some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from lab import access
from tests import builders
from tests.webhook import components, conftest
from tests.webhook.conftest import NODES, Cluster
from tests.webhook.replica import until
from webhook.controllers.borrow.placeholders import PODS_PATH as PODS

pytestmark = pytest.mark.apiserver

GPUS = 2


@pytest.fixture(scope="module")
def with_component(scheduler: access.Access) -> Iterator[access.Access]:
    yield from components.installed(scheduler, "borrow", contract.BORROW_NAMESPACE)


@pytest.fixture
def lender(with_component: access.Access, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose node has two GPUs of another device plugin, and a replica that may borrow both."""
    for cluster in conftest.prepared(with_component, tmp_path):
        cluster.administrator.delete(f"{contract.GPUNODE_PATH}/node-a")
        cluster.remake(builders.node(gpus=GPUS, owner=contract.OTHER_OWNER))
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", **builders.agent_resources(GPUS)}
        cluster.describe("node-a", {**amounts, contract.BORROWED_RESOURCE: str(GPUS)})
        cluster.administrator.patch(f"{NODES}/node-a", {"metadata": {"labels": {contract.BORROW_LABEL: str(GPUS)}}})
        cluster.start("--borrow-max-gpus=2", "--borrow-idle-seconds=600", "--reservation-seconds=2")
        yield cluster
        cluster.administrator.delete(PODS)


def placeholders(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the placeholders, the oldest first."""
    found = cluster.administrator.read(PODS)["items"]
    return sorted(found, key=lambda made: str(made["status"].get("startTime", made["metadata"]["creationTimestamp"])))


def run(cluster: Cluster, made: dict[str, Any], index: int) -> None:
    """Start a placeholder and report its GPU, as kubelet and agent would; `index`: of the GPU."""
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    until(lambda: cluster.administrator.read(f"{PODS}/{name}")["spec"].get("nodeName") == "node-a", cluster.explain)
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "startTime": f"2026-01-01T00:00:0{index}Z", "conditions": ready}
    cluster.administrator.patch(f"{PODS}/{name}/status", {"status": status})
    path = f"/status/gpus/{index}/owner"
    cluster.administrator.patch(
        f"{contract.GPUNODE_PATH}/node-a/status", [{"op": "replace", "path": path, "value": uid}]
    )


def is_placed(cluster: Cluster, name: str) -> bool:
    return contract.ALLOCATION in cluster.pod(name)["metadata"]["annotations"]


def test_a_whole_gpu_pod_preempts_the_placeholder_without_shares(lender: Cluster) -> None:
    for name in ("a", "b"):
        lender.create(builders.pod(name, request="1"))
    until(lambda: len(placeholders(lender)) == GPUS, lender.explain)
    for index, made in enumerate(placeholders(lender)):
        run(lender, made, index)
    until(lambda: is_placed(lender, "a") and is_placed(lender, "b"), lender.explain)
    older, younger = (made["metadata"]["name"] for made in placeholders(lender))
    uuids = {lender.pod(name)["metadata"]["annotations"][contract.GPU_UUIDS]: name for name in ("a", "b")}
    lender.delete(uuids["GPU-node-a-0"])  # without a budget, the scheduler preempts the younger of two equals

    def in_use() -> list[str]:
        there = placeholders(lender)
        return [made["metadata"]["name"] for made in there if contract.IN_USE_LABEL in made["metadata"]["labels"]]

    until(lambda: in_use() == [younger], lender.explain)
    whole = builders.pod("whole")
    whole["spec"]["containers"][0]["resources"] = {"limits": {contract.BORROWED_RESOURCE: "1"}}
    lender.create(whole)

    def preempted() -> list[str]:
        there = placeholders(lender)
        return [made["metadata"]["name"] for made in there if "deletionTimestamp" in made["metadata"]]

    until(lambda: preempted() != [], lender.explain)
    assert preempted() == [older]
