"""The life of a pod with a real API server, two webhooks and the placer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gpushare import contract, ledger
from gpushare.cluster import api_client, api_errors
from gpushare.placement_profile import PlacementProfile
from lab import access, api_audit, lab_errors
from tests import builders
from tests.webhook.conftest import BASE, Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver


async def create_all(cluster: Cluster, manifests: list[dict[str, Any]]) -> list[dict[str, Any] | Exception]:
    """Create pods at the same time; return the results."""
    async with api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
        path = f"/api/v1/namespaces/{cluster.namespace}/pods"

        async def create(manifest: dict[str, Any]) -> dict[str, Any]:
            return await api.create(path, manifest)

        return await asyncio.gather(*map(create, manifests), return_exceptions=True)  # type: ignore[arg-type]


def pods(count: int, **annotations: str) -> list[dict[str, Any]]:
    made = [builders.pod(f"pod-{number}", **annotations) for number in range(count)]
    for manifest in made:
        del manifest["metadata"]["namespace"]
    return made


def annotations(pod: dict[str, Any]) -> dict[str, str]:
    values: dict[str, str] = pod["metadata"]["annotations"]
    return values


def test_a_pod_is_placed_confirmed_and_released(cluster: Cluster) -> None:
    started = cluster.start()
    stored = cluster.create_placed(builders.pod(request="0.5"))
    assert stored["spec"]["nodeSelector"] == {contract.HOSTNAME_LABEL: "node-a.example"}
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {contract.RESOURCE_PERCENT: "50"}
    assert annotations(stored)[contract.NODE] == "node-a"
    until(cluster.is_settled, cluster.explain)
    (held,) = cluster.node().allocations
    assert (held.pod.name, held.pod.uid) == ("trainer", stored["metadata"]["uid"])
    assert annotations(stored)[contract.GPU_UUIDS] == ",".join(held.gpu_uuids)

    cluster.delete("trainer")
    until(lambda: not cluster.node().allocations, cluster.explain)
    assert sum(started.reviews().values()) == 1


PLACEMENT = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/configmaps/{contract.PLACEMENT_CONFIG_MAP}"


def test_viewer_of_gpunodes_reads_the_placement_profile(cluster: Cluster) -> None:
    manifest = BASE / "webhook" / "placement.yaml"
    cluster.kubectl("apply", "-f", str(manifest))
    cluster.start("--policy=pack")

    def data() -> dict[str, str]:
        return dict(cluster.administrator.read(PLACEMENT).get("data") or {})

    def seen_by_the_viewer() -> dict[str, str]:
        named = ("configmap", contract.PLACEMENT_CONFIG_MAP, f"--namespace={contract.SYSTEM_NAMESPACE}")
        return dict(json.loads(cluster.kubectl("get", *named, "-o", "json", "--as=viewer")).get("data") or {})

    until(lambda: data().get("policy") == "pack", cluster.explain)
    cluster.kubectl("apply", "-f", str(manifest))  # as after an upgrade
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "viewer-of-shares"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "gpushare-viewer"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "viewer"}],
    }
    bindings = f"/apis/{group}/v1/clusterrolebindings"
    cluster.administrator.create(bindings, binding)

    def may_view() -> bool:
        try:
            return bool(seen_by_the_viewer())
        except lab_errors.LabError:
            return False

    try:
        until(may_view, cluster.explain)  # RBAC hears of the binding a moment later
        assert PlacementProfile.read(seen_by_the_viewer()) == PlacementProfile("pack")
    finally:
        cluster.administrator.delete(f"{bindings}/viewer-of-shares")
        cluster.administrator.delete(PLACEMENT)


def test_leader_rewrites_an_invalid_profile(cluster: Cluster) -> None:
    manifest = BASE / "webhook" / "placement.yaml"
    cluster.start("--policy=pack")  # there is no ConfigMap yet
    cluster.kubectl("apply", "-f", str(manifest))

    def policy() -> object:
        return (cluster.administrator.read(PLACEMENT).get("data") or {}).get("policy")

    try:
        until(lambda: policy() == "pack", cluster.explain)
        cluster.administrator.patch(PLACEMENT, {"data": {"policy": "nonsense"}})
        until(lambda: policy() == "pack", cluster.explain)
    finally:
        cluster.administrator.delete(PLACEMENT)


def watches_of_all_pods(administrator: access.Access) -> set[str]:
    """Return the IDs of the watches of all pods, from the audit log."""
    assert administrator.lab is not None
    calls = api_audit.calls(administrator.lab.audit_log)
    return {call.id for call in calls if (call.verb, call.resource, call.namespace) == ("watch", "pods", "")}


def test_a_webhook_watches_all_pods_once(cluster: Cluster) -> None:
    before = watches_of_all_pods(cluster.administrator)
    cluster.start()
    cluster.create_placed(builders.pod(request="0.5"))
    until(cluster.is_settled, cluster.explain)  # so that its placer has seen the pod, too
    cluster.delete("trainer")
    until(lambda: not cluster.node().allocations, cluster.explain)
    assert len(watches_of_all_pods(cluster.administrator) - before) == 1


def test_ended_pod_has_no_share(cluster: Cluster) -> None:
    cluster.start()
    cluster.create_placed(builders.pod(request="1"))
    cluster.administrator.patch(f"{cluster.path}/pods/trainer/status", {"status": {"phase": "Succeeded"}})
    until(lambda: not cluster.node().allocations, cluster.explain)


def test_a_pod_without_our_annotations_is_never_seen(cluster: Cluster) -> None:
    started = cluster.start()
    cluster.create(builders.pod("plain"))
    cluster.create(builders.pod("shared", request="0.5"))
    assert sum(started.reviews().values()) == 1


def test_a_bad_request_is_denied_with_its_sentence(cluster: Cluster) -> None:
    cluster.start()
    with pytest.raises(lab_errors.LabError, match=r'gpushare\.io/request "1\.5" is more than one GPU'):
        cluster.create(builders.pod(request="1.5"))
    assert cluster.node().allocations == ()


def test_a_dry_run_leaves_nothing(cluster: Cluster) -> None:
    started = cluster.start()
    planned = cluster.create(builders.pod(request="0.5"), dry_run=True)
    assert annotations(planned)[contract.NODE] == "node-a"
    assert started.reviews() == {"planned": 1}
    assert cluster.node().allocations == ()


def test_forged_results_are_stripped(cluster: Cluster) -> None:
    cluster.start()
    forged = builders.pod(request="0.5", allocation="mine", node="node-z")
    annotations(forged)[contract.GPU_UUIDS] = "GPU-all-of-them"
    stored = cluster.create_placed(forged)
    assert annotations(stored)[contract.NODE] == "node-a"
    assert annotations(stored)[contract.ALLOCATION] != "mine"
    assert annotations(stored)[contract.GPU_UUIDS].startswith("GPU-node-a-")


def test_copied_pod_gets_its_own_share(cluster: Cluster) -> None:
    cluster.start()
    first = cluster.create_placed(builders.pod("first", request="0.5"))
    copy = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "copy", "annotations": annotations(first)},
        "spec": first["spec"],
    }
    second = cluster.create_placed(copy)
    assert annotations(second)[contract.ALLOCATION] != annotations(first)[contract.ALLOCATION]
    until(cluster.is_settled, cluster.explain)
    assert len(cluster.node().allocations) == 2


def test_a_gated_pod_says_why_and_runs_when_there_is_room(cluster: Cluster) -> None:
    cluster.start()
    for number in range(4):
        cluster.create_placed(builders.pod(f"first-{number}", request="1"))
    until(cluster.is_settled, cluster.explain)  # until then the reason may be that other pods are not stored yet
    waiting = cluster.create(builders.pod("waiting", request="0.5", memory="8Gi"))
    assert waiting["spec"]["schedulingGates"] == [{"name": contract.SCHEDULING_GATE}]
    reason = annotations(waiting)[contract.REASON]
    assert reason.startswith("no GPU fits 0.5 GPU with 8Gi: of 4 GPUs on 1 node, 4 with too little compute free")

    until(lambda: "Gated" in reasons_of_events(cluster, "waiting"), cluster.explain)
    cluster.delete("first-2")
    until(lambda: "schedulingGates" not in cluster.pod("waiting")["spec"], cluster.explain)
    placed = cluster.pod("waiting")
    assert placed["spec"]["nodeSelector"] == {contract.HOSTNAME_LABEL: "node-a.example"}
    assert annotations(placed)[contract.GPU_UUIDS].startswith("GPU-node-a-")
    assert contract.REASON not in annotations(placed)
    until(cluster.is_settled, cluster.explain)
    until(lambda: "Placed" in reasons_of_events(cluster, "waiting"), cluster.explain)


def reasons_of_events(cluster: Cluster, pod_name: str) -> set[str]:
    return {event["reason"] for event in cluster.events() if event["involvedObject"]["name"] == pod_name}


def test_gated_pods_are_placed_by_priority_and_then_age(cluster: Cluster) -> None:
    cluster.start()
    important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "important"}}
    cluster.kubectl("apply", "-f", "-", input=json.dumps({**important, "value": 1000}))
    cluster.create_placed(builders.pod("all", request="1", gpus="4"))
    for name in ("early", "late"):
        cluster.create(builders.pod(name, request="1", gpus="4"))
    urgent = builders.pod("urgent", request="1", gpus="4")
    urgent["spec"]["priorityClassName"] = "important"
    until(lambda: not cluster.refuses(urgent, "important"), cluster.explain)  # admission hears of it a moment later
    cluster.create(urgent)

    def holders() -> list[str]:
        return [entry.pod.name for entry in cluster.node().allocations]

    until(lambda: holders() == ["all"] and cluster.is_settled(), cluster.explain)
    order = []
    for holder in ("all", "urgent", "early"):
        cluster.delete(holder)
        until(lambda holder=holder: holders() not in ([], [holder]), cluster.explain)  # type: ignore[misc]
        order += holders()
        until(cluster.is_settled, cluster.explain)
    assert order == ["urgent", "early", "late"]


async def test_a_burst_through_two_replicas_never_over_commits(cluster: Cluster) -> None:
    replicas = [cluster.start(), cluster.start()]
    made = await create_all(cluster, pods(30, request="0.25"))
    assert [outcome for outcome in made if isinstance(outcome, Exception)] == []
    until(lambda: cluster.is_settled() and len(cluster.node().allocations) == 16, cluster.explain)
    stored = cluster.pods()
    gated = [pod for pod in stored if contract.REASON in annotations(pod)]
    assert len(stored) - len(gated) == 16  # four GPUs of four quarters
    assert len(cluster.node().allocations) == 16
    counts = [replica.reviews() for replica in replicas]
    assert all(counts), f"one replica did nothing: {counts}"
    assert sum(sum(count.values()) for count in counts) == 30


async def test_reservations_that_wait_share_a_write(cluster: Cluster) -> None:
    started = cluster.start("--reservation-seconds=5")
    made = await create_all(cluster, pods(30, request="0.1", memory="1Gi"))
    stored = sum(not isinstance(outcome, Exception) for outcome in made)
    assert stored > 20, made
    # Pods that were gated while the disk was slow are placed later; an unanswered write is not counted, and
    # reservations of pods that were not stored expire.
    until(
        lambda: cluster.is_settled() and len(cluster.node().allocations) == len(cluster.pods()),
        cluster.explain,
        seconds=60,
    )
    changes = started.metric("gpushare_webhook_ledger_changes_total")
    writes = started.metric('gpushare_webhook_ledger_writes_total{result="written"}')
    assert writes < changes  # how many share one is up to the moment: see store/test_group_commit.py


async def test_a_replica_killed_in_a_burst_leaves_nothing_for_long(cluster: Cluster) -> None:
    victim = cluster.start("--reservation-seconds=3")
    survivor = cluster.start("--reservation-seconds=3")
    burst = asyncio.create_task(create_all(cluster, pods(30, request="0.25")))
    while not victim.reviews():  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.01)
    victim.kill()
    made = await burst
    lost = [outcome for outcome in made if isinstance(outcome, Exception)]
    assert all(isinstance(error, api_errors.ClusterError) for error in lost)
    assert ledger.violations(cluster.node()) == []
    # The victim led, as it was first: its Lease has to run out before the survivor keeps the books.
    # And what it had reserved for pods that were never stored lapses before others get it.
    count = min(16, len(cluster.pods()))
    until(lambda: cluster.is_settled() and len(cluster.node().allocations) == count, cluster.explain, seconds=60)
    until(lambda: survivor.metric("gpushare_placer_leads") == 1, survivor.explain)


def test_reservations_survive_a_restart(cluster: Cluster) -> None:
    first = cluster.start()
    cluster.create_placed(builders.pod("holder", request="1", gpus="4"))
    cluster.create(builders.pod("waiting", request="0.5"))
    until(cluster.is_settled, cluster.explain)
    assert first.stop() == 0, first.explain()
    cluster.delete("holder")  # no client sees it
    cluster.front.ports.clear()
    cluster.start()
    until(lambda: "schedulingGates" not in cluster.pod("waiting")["spec"], cluster.explain)
    until(cluster.is_settled, cluster.explain)
