"""Preemption with real processes: evictions, budgets, restarts, and pods that get the place that was freed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from lab import access
from tests import builders
from tests.config import manifests
from tests.webhook import conftest
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver

RIGHTS = manifests.CONFIG / "components" / "preemption" / "rights.yaml"
HIGH = "preemption-test-high"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "servers", "uid": "1", "controller": True}


@pytest.fixture(scope="module")
def with_component(api_server: access.Access) -> Iterator[access.Access]:
    for administrator in conftest.installed(api_server):
        administrator.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={RIGHTS}")
        high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}, "value": 100}
        administrator.create(CLASSES, high)
        yield administrator
        administrator.delete(f"{CLASSES}/{HIGH}")
        administrator.kubectl("delete", "--wait=false", f"--filename={RIGHTS}")


@pytest.fixture
def full(with_component: access.Access, tmp_path: Path) -> Iterator[Cluster]:
    """A node whose four GPUs and CPUs are used by running pods `low-0` to `low-3`."""
    for cluster in conftest.prepared(with_component, tmp_path):
        amounts = {"cpu": "4", "memory": "64Gi", "pods": "110", **builders.agent_resources(4)}
        cluster.describe("node-a", amounts)
        cluster.start("--preemption")
        for number in range(4):
            made = asking(f"low-{number}", labels={"app": f"app-{number // 2}"})
            made["metadata"]["ownerReferences"] = [OWNER]
            cluster.create_placed(made)
            run(cluster, f"low-{number}")
        until(cluster.is_settled, cluster.explain)
        yield cluster


def asking(name: str, *, labels: dict[str, str] | None = None, priority: str = "", **asked: Any) -> dict[str, Any]:
    made = builders.pod(name, labels=labels, **{"request": "1", **asked})
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    if priority:
        made["spec"]["priorityClassName"] = priority
    return made


def run(cluster: Cluster, name: str) -> None:
    """Report the pod as running, as its kubelet would; only such a pod counts for a budget."""
    cluster.bind(name)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.administrator.patch(f"{cluster.path}/pods/{name}/status", {"status": ready})


def evicted(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.pods() if pod["metadata"].get("deletionTimestamp")}


def reason(cluster: Cluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["annotations"].get(contract.REASON, ""))


def is_placed(cluster: Cluster, name: str) -> bool:
    return contract.ALLOCATION in cluster.pod(name)["metadata"]["annotations"]


def test_a_pod_takes_the_place_of_another_and_the_next_placer_continues(full: Cluster) -> None:
    full.create(asking("high", priority=HIGH))
    until(lambda: len(evicted(full)) == 1, full.explain)
    (victim,) = evicted(full)  # which one is arbitrary, because their times of creation are in whole seconds
    until(lambda: "; takes the place of other pods on node-a" in reason(full, "high"), full.explain)
    until(lambda: len(full.notes(contract.EVENT_PREEMPTED)) == 1, full.explain)
    assert full.notes(contract.EVENT_PREEMPTED)[0].startswith(f"evicted for {full.namespace}/high, whose priority 100")
    until(lambda: full.notes(contract.EVENT_PREEMPTING) != [], full.explain)
    # Its replacement comes at once, and a placer that died between eviction and placement is replaced.
    again = asking("low-4")
    again["metadata"]["ownerReferences"] = [OWNER]
    full.create(again)
    full.kill(full.replicas[0])
    full.front.ports.clear()
    second = full.start("--preemption")
    until(lambda: second.metric("gpushare_placer_leads") == 1, second.explain)
    full.create(asking("other"))  # by then it has read the state
    until(lambda: reason(full, "other") != "", full.explain)
    assert evicted(full) == {victim}
    full.delete(victim)  # its kubelet has ended it
    until(lambda: is_placed(full, "high"), full.explain)
    assert not is_placed(full, "low-4")
    until(lambda: "no GPU fits" in reason(full, "low-4"), full.explain)
    run(full, "high")
    assert len([pod for pod in full.pods() if pod["metadata"]["name"].startswith("low-")]) == 4
    until(full.is_settled, full.explain)
    full.delete("high")  # the recreated pod has waited for the place, and gets it back
    until(lambda: is_placed(full, "low-4"), full.explain)
    run(full, "low-4")


def test_budgets_are_kept_and_others_go_instead(full: Cluster) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "app-1"}}},
    }
    budgets = f"/apis/policy/v1/namespaces/{full.namespace}/poddisruptionbudgets"
    full.administrator.create(budgets, budget)
    full.create(asking("high", priority=HIGH, gpus="2"))
    until(lambda: evicted(full) == {"low-0", "low-1"}, full.explain)
    for name in ("low-0", "low-1"):
        full.delete(name)
    until(lambda: is_placed(full, "high"), full.explain)
    # All others are protected now.
    full.create(asking("higher", priority=HIGH))
    until(lambda: "no GPU fits" in reason(full, "higher"), full.explain)
    assert full.replicas[0].metric("gpushare_placer_preempted_total") == 2
    assert evicted(full) == set()
