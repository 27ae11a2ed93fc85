"""The standing defragmentation on a real API server: told, carried out, and stopped by whatever is not as planned."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any, cast

import pytest

from gpushare import contract
from gpushare.cluster import api_client, events
from tests import builders, rights
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from tests.webhook.test_stuck_on_a_real_scheduler import ALLOCATABLE
from webhook import metrics
from webhook.controllers.defragmenter import Defragmenter
from webhook.planner import process
from webhook.planner.suggested_plan import SuggestedMove, SuggestedPlan, SuggestedStep
from webhook.pods.stored_pod import Pod

pytestmark = pytest.mark.apiserver

SOON = "--defrag-seconds=1"
PLAN_SECONDS = 180.0  # for one plan, whose process gives way to all others, on a machine that is busy


def owned(name: str, request: str) -> dict[str, Any]:
    manifest = builders.pod(name, request=request)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": f"rs-of-{name}", "controller": True}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest


def gpu_of(cluster: Cluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"].get("annotations", {}).get(contract.GPU_UUIDS, ""))


def fragmented(cluster: Cluster) -> None:
    """A quarter and a half of a GPU on two GPUs, the others full, and a pod that waits for a whole one."""
    cluster.describe("node-a", ALLOCATABLE)
    for name, request in (("big", "0.75"), ("half", "0.5"), ("full-1", "1"), ("full-2", "1"), ("quarter", "0.25")):
        cluster.create_placed(owned(name, request))
        cluster.bind(name)
    cluster.delete("big")
    until(cluster.is_settled, cluster.explain)
    assert len({gpu_of(cluster, name) for name in ("half", "quarter")}) == 2
    cluster.create(builders.pod("waits", request="1"))


def play_the_owner_of(cluster: Cluster, name: str) -> None:
    """What a ReplicaSet and a kubelet do once a pod is evicted."""
    until(lambda: cluster.pod(name)["metadata"].get("deletionTimestamp"), cluster.explain, seconds=PLAN_SECONDS)
    successor = owned(f"{name}-anew", "0.25")
    successor["metadata"]["ownerReferences"][0]["uid"] = f"rs-of-{name}"
    cluster.create(successor)
    cluster.delete(name)


def told_of_node(cluster: Cluster) -> list[str]:
    return cluster.notes(contract.EVENT_DEFRAG, "default")


@pytest.mark.timeout(600)  # two plans
def test_a_plan_is_told_and_in_auto_it_is_carried_out(cluster: Cluster) -> None:
    suggesting = cluster.start("--defrag=suggest", SOON)
    fragmented(cluster)
    half, quarter = gpu_of(cluster, "half"), gpu_of(cluster, "quarter")
    until(lambda: cluster.notes(contract.EVENT_DEFRAG), cluster.explain, seconds=PLAN_SECONDS)
    (said,) = cluster.notes(contract.EVENT_DEFRAG)
    index = quarter.rpartition("-")[2]
    assert said == (f"would fit on node-a/{index} after 1 move of other pods: see `kubectl gpushare defrag --moves 1`")
    moves = f"{cluster.namespace}/quarter from node-a/{index} to node-a/{half.rpartition('-')[2]}"
    until(lambda: any(note.endswith(moves) for note in told_of_node(cluster)), cluster.explain)
    assert not cluster.notes(contract.EVENT_MOVED)
    assert cluster.node().cordoned == frozenset()
    used = rights.used_on(cluster.administrator, contract.WEBHOOK_SERVICE_ACCOUNT)
    assert ("poddisruptionbudgets.policy", "list") in used
    suggesting.stop()

    cluster.start("--defrag=auto", SOON)
    play_the_owner_of(cluster, "quarter")
    until(lambda: gpu_of(cluster, "quarter-anew"), cluster.explain)
    until(lambda: gpu_of(cluster, "waits"), cluster.explain)
    assert (gpu_of(cluster, "quarter-anew"), gpu_of(cluster, "waits")) == (half, quarter)
    until(lambda: not cluster.node().cordoned, cluster.explain)
    assert not any(key.startswith(contract.DEFRAG_LABEL_PREFIX) for key in cluster.node().labels)
    (moved,) = cluster.notes(contract.EVENT_MOVED)
    assert moved.startswith("evicted from node-a/")
    assert moved.endswith(f"to defragment: ReplicaSet rs recreates it, for node-a/{half.rpartition('-')[2]}")


def test_what_an_admin_or_another_plan_keeps_is_left_alone(cluster: Cluster) -> None:
    """A mark of a run that lives: no plan. Of one that has ended: uncordoned first."""
    cluster.start("--defrag=auto", SOON)
    patch: dict[str, Any] = {
        "metadata": {"labels": {f"{contract.DEFRAG_LABEL_PREFIX}GPU-node-a-3": "other.20990101T000000Z"}},
        "spec": {"cordoned": ["GPU-node-a-2", "GPU-node-a-3"]},
    }
    cluster.kubectl("patch", "gpunode", "node-a", "--type=merge", f"--patch={json.dumps(patch)}")
    cluster.describe("node-a", ALLOCATABLE)
    cluster.create_placed(owned("a", "0.25"))
    cluster.bind("a")
    patch["metadata"]["labels"] = {f"{contract.DEFRAG_LABEL_PREFIX}GPU-node-a-3": "other.20200101T000000Z"}
    cluster.kubectl("patch", "gpunode", "node-a", "--type=merge", f"--patch={json.dumps(patch)}")
    until(lambda: cluster.node().cordoned == {"GPU-node-a-2"}, cluster.explain, seconds=PLAN_SECONDS)


@pytest.mark.parametrize("obstacle", ["another allocation", "a budget", "another leader", "another plan"])
async def test_a_move_that_is_not_as_planned_is_not_made_and_leaves_nothing(cluster: Cluster, obstacle: str) -> None:
    cluster.start()
    cluster.create_placed(owned("a", "0.25"))
    cluster.bind("a")
    until(cluster.is_settled, cluster.explain)
    pod = Pod.from_manifest(cluster.pod("a"))
    uuid = gpu_of(cluster, "a")
    if obstacle == "a budget":
        spec = {"minAvailable": 1, "selector": {"matchLabels": {contract.SHARE_LABEL: contract.SHARE_LABEL_VALUE}}}
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
        cluster.kubectl("create", "-n", cluster.namespace, "-f", "-", input=json.dumps(budget))
        running = {"status": {"phase": "Running"}}  # budgets do not count pods that have not started
        cluster.kubectl(
            *("patch", "pod", "a", "-n", cluster.namespace, "--subresource=status", f"--patch={json.dumps(running)}")
        )
    if obstacle == "another plan":
        label = {f"{contract.DEFRAG_LABEL_PREFIX}{uuid}": "other.20990101T000000Z"}
        patch = {"metadata": {"labels": label}, "spec": {"cordoned": [uuid]}}
        cluster.kubectl("patch", "gpunode", "node-a", "--type=merge", f"--patch={json.dumps(patch)}")
    identity = "another" if obstacle == "another allocation" else pod.allocation_id
    move = SuggestedMove(pod.ref, identity, "node-a/0", "node-a/1", (("node-a", uuid),))

    async def plan(settled: list[str]) -> SuggestedPlan:
        assert settled == []
        return SuggestedPlan((SuggestedStep((move,)),), gained=1.0)

    measures = metrics.Metrics()
    async with api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
        standing = Defragmenter(
            api,
            events.Recorder(api, controller="test", instance="test"),
            measures,
            mode="auto",
            every_seconds=1,
            plan=plan,
            nodes=list,  # as if the other plan had begun after we looked
            pods=lambda: {"a": pod},
            leads=lambda: obstacle != "another leader",
        )
        await standing.step()
    assert measures.registry.get_sample_value("gpushare_placer_defrag_moves_total", {"result": "stopped"}) == 1
    assert "deletionTimestamp" not in cluster.pod("a")["metadata"]
    assert cluster.node().cordoned == (frozenset({uuid}) if obstacle == "another plan" else frozenset())


async def test_without_a_plan_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The planner's process says why, as one does whose cluster is not there; or something happens that nobody foresaw."""
    nowhere = process.Question({}, 5, [], 0.1, "/nowhere/kubeconfig")
    plans = [lambda _: process.suggest(nowhere), lambda _: asyncio.sleep(0, 1 / 0)]
    measures = metrics.Metrics()
    for plan in plans:
        standing = Defragmenter(
            cast("api_client.ApiClient", None),
            cast("events.Recorder", None),
            measures,
            mode="auto",
            every_seconds=0.01,
            plan=cast("Any", plan),
            nodes=list,
            pods=dict,
            leads=lambda: True,
        )
        running = asyncio.create_task(standing.run())
        failed = functools.partial(
            measures.registry.get_sample_value, "gpushare_placer_defrag_plans_total", {"result": "failed"}
        )
        before = failed()
        async with asyncio.timeout(60):
            while failed() == before:  # noqa: ASYNC110 (nothing tells us)
                await asyncio.sleep(0.05)
        assert not running.done()
        running.cancel()
    assert "/nowhere/kubeconfig" in caplog.records[0].__dict__["err"]
