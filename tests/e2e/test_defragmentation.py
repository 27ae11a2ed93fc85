"""`kubectl gpushare defrag --apply` on a real Kubernetes: what waits for a whole GPU gets one."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract, ledger
from tests import builders
from tests.e2e.observation import Observer, annotation, eventually

pytestmark = pytest.mark.lab

SLEEP = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"]


def sleeper(name: str, **annotations: str) -> dict[str, Any]:
    manifest = builders.pod(name, **annotations)
    del manifest["metadata"]["namespace"]
    manifest["spec"]["containers"][0]["command"] = SLEEP
    manifest["spec"]["terminationGracePeriodSeconds"] = 1
    return manifest


def deployment(name: str, replicas: int, **annotations: str) -> dict[str, Any]:
    pod = sleeper(name, **annotations)
    template = {
        "metadata": {"labels": {"app": name}, "annotations": pod["metadata"]["annotations"]},
        "spec": pod["spec"],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def test_a_pod_that_waits_for_a_whole_gpu_gets_one_by_one_move(user: Observer) -> None:
    user.apply(deployment("spread", 4, request="0.4", policy="spread"))

    def spread() -> set[str] | None:
        running = [pod for pod in user.pods() if pod["status"].get("phase") == "Running"]
        uuids = {annotation(pod, contract.GPU_UUIDS) for pod in running}
        return uuids if len(running) == 4 and len(uuids) == 4 else None

    eventually(spread, seconds=90, what="one pod on each of four GPUs")
    before = {pod["metadata"]["uid"] for pod in user.pods()}
    user.apply(sleeper("whole", request="1"))
    eventually(lambda: annotation(user.pod("whole") or {"metadata": {}}, contract.REASON), what="a reason to wait")

    told = user.plugin("defrag", "whole", "--apply", f"--namespace={user.namespace}")
    assert "1 move" in told
    user.running("whole")
    eventually(spread_on_three(user), seconds=60, what="four pods on three GPUs")
    after = {pod["metadata"]["uid"] for pod in user.pods("--selector=app=spread")}
    assert len(before & after) == 3, "one pod was moved, and only one"
    node = user.gpunode()
    assert ledger.violations(node) == []
    assert not node.cordoned
    user.kubectl("delete", "deployment", "--all", "--wait=false")
    user.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=60s")
    user.ledger_is_empty()


def spread_on_three(user: Observer) -> Any:
    def look() -> bool:
        running = [pod for pod in user.pods("--selector=app=spread") if pod["status"].get("phase") == "Running"]
        return len(running) == 4 and len({annotation(pod, contract.GPU_UUIDS) for pod in running}) == 3

    return look
