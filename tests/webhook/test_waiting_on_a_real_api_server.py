"""Waiting and stuck pods with real processes: their outcome, and their cost."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any

import pytest

from gpushare import contract, ledger
from gpushare.cluster import api_client
from lab import lab_errors
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver


def annotations(cluster: Cluster, name: str) -> Mapping[str, str]:
    values: dict[str, str] = cluster.pod(name)["metadata"]["annotations"]
    return values


# --- stuck ------------------------------------------------------------------------------------------------------------


def owned(name: str) -> dict[str, Any]:
    made = builders.pod(name, request="0.5")
    reference = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "trainers",
        "uid": "owner-1",
        "controller": True,
    }
    made["metadata"]["ownerReferences"] = [reference]
    return made


def refuse_to_bind(cluster: Cluster, name: str) -> None:
    """Write the condition that the scheduler writes."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient cpu."}
    cluster.administrator.patch(f"{cluster.path}/pods/{name}/status", {"status": {"conditions": [condition]}})


def names(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.pods()}


def test_stuck_pod_is_evicted_if_its_owner_recreates_it_and_explained_if_not(cluster: Cluster) -> None:
    started = cluster.start("--stuck-seconds=2")
    for name in ("owned", "bound"):
        cluster.create_placed(owned(name))
    cluster.create_placed(builders.pod("alone", request="0.5"))
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "bound"}, "target": {"name": "node-a"}}
    cluster.administrator.create(f"{cluster.path}/pods/bound/binding", binding)
    for name in ("owned", "alone", "bound"):
        refuse_to_bind(cluster, name)
    until(lambda: names(cluster) == {"alone", "bound"}, cluster.explain)
    until(lambda: len(cluster.notes(contract.EVENT_STUCK)) == 2, cluster.explain)
    said = sorted(cluster.notes(contract.EVENT_STUCK), key=len)
    assert said[0].startswith("was placed on node-a, where the scheduler cannot bind it: 1 Insufficient cpu.; ")
    until(lambda: bool(cluster.notes(contract.EVENT_REPLACED)), cluster.explain)
    until(cluster.is_settled, cluster.explain)
    assert {entry.pod.name for entry in cluster.node().allocations} == {"alone", "bound"}
    until(lambda: started.metric("gpushare_placer_stuck_pods") == 1, started.explain)


def test_evictions_of_one_owner_are_spread(cluster: Cluster) -> None:
    started = cluster.start("--stuck-seconds=1")
    for number in range(3):
        cluster.create_placed(owned(f"trainer-{number}"))
    for number in range(3):
        refuse_to_bind(cluster, f"trainer-{number}")
    until(lambda: started.metric("gpushare_placer_replaced_total") == 1, started.explain)
    until(lambda: started.metric("gpushare_placer_stuck_pods") == 2, started.explain)
    assert len(names(cluster)) == 2


def test_recreated_pod_goes_to_another_node_on_any_replica(cluster: Cluster) -> None:
    cluster.add_node(builders.node("node-b"))
    placing, other = cluster.start("--stuck-seconds=2"), cluster.start("--no-placer")
    made = {**owned("trainer"), "metadata": {**owned("trainer")["metadata"], "finalizers": ["tenant.example/stay"]}}
    first = cluster.create_placed(made)["metadata"]["annotations"][contract.NODE]
    last = "node-b" if first == "node-a" else "node-a"

    def goes() -> str:
        try:
            again = cluster.create(owned("again"), dry_run=True)
        except lab_errors.LabError as error:  # of a connection that was just ended
            return str(error)
        return str(again["metadata"]["annotations"].get(contract.NODE))

    until(lambda: goes() == first, cluster.explain)
    refuse_to_bind(cluster, "trainer")
    until(lambda: placing.metric("gpushare_placer_replaced_total") == 1, placing.explain)
    for stopped, asked in ((other, placing), (placing, other)):
        cluster.front.send_to(asked.port)
        until(lambda: goes() == last, asked.explain)
        assert stopped.process.poll() is None
    cluster.front.send_to(placing.port, other.port)
    cluster.administrator.patch(f"/api/v1/nodes/{last}", {"spec": {"unschedulable": True}})
    until(lambda: goes() == "None", cluster.explain)
    cluster.create(owned("waits"))
    said = f"{first} is excluded for a while, because a pod of ReplicaSet trainers could not be bound to it; the scheduler said"
    until(lambda: f"{said}: 1 Insufficient cpu." in annotations(cluster, "waits")[contract.REASON], cluster.explain)
    cluster.administrator.patch(f"{cluster.path}/pods/trainer", {"metadata": {"finalizers": None}})


# --- rejected ungating ------------------------------------------------------------------------------------------------


def shut_gates(cluster: Cluster) -> dict[str, Any]:
    """Reject ungating in the namespace of the test, as another policy may."""
    name = {"name": f"shut-{cluster.namespace}"}
    version = "admissionregistration.k8s.io/v1"
    updates = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}}
    opens = "has(oldObject.spec.schedulingGates) && !has(object.spec.schedulingGates)"
    policy = {
        "matchConstraints": {"resourceRules": [updates]},
        "validations": [{"expression": f"!({opens})", "message": "gates are the team's to open"}],
    }
    binding = {"policyName": name["name"], "validationActions": ["Deny"], "matchResources": here}
    items = [
        {"apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": name, "spec": policy},
        {"apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": name, "spec": binding},
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def test_pod_whose_ungating_a_policy_rejects_keeps_no_gpu(cluster: Cluster) -> None:
    started = cluster.start()
    cluster.create_placed(builders.pod("first", request="1", gpus="4"))
    first_by_placer = started.reviews().get("gated", 0)  # on a slow disk
    cluster.create(builders.pod("shut", request="1", gpus="4"))
    # Of a pod without a share: of one with a share other policies have a word to say as well.
    cluster.create(
        {**builders.pod("tried"), "spec": {**builders.pod("tried")["spec"], "schedulingGates": [{"name": "a/b"}]}}
    )
    policy = json.dumps(shut_gates(cluster))
    cluster.kubectl("create", "-f", "-", input=policy)
    try:
        opened = [{"op": "remove", "path": "/spec/schedulingGates"}]

        def is_shut() -> bool:
            try:
                cluster.administrator.patch(f"{cluster.path}/pods/tried?dryRun=All", opened)
            except lab_errors.LabError as error:
                return "gates are the team's to open" in str(error)
            return False

        until(is_shut, cluster.explain)
        cluster.delete("first")
        words = "the API server rejects the removal of its scheduling gate: "
        until(lambda: words in annotations(cluster, "shut")[contract.REASON], cluster.explain)
        assert "gates are the team's to open" in annotations(cluster, "shut")[contract.REASON]
        until(lambda: cluster.node().allocations == (), cluster.explain)
        until(lambda: any(words in note for note in cluster.notes(contract.EVENT_GATED)), cluster.explain)
    finally:
        cluster.kubectl("delete", "--wait=false", "-f", "-", input=policy)
    until(lambda: contract.ALLOCATION in annotations(cluster, "shut"), cluster.explain, seconds=60.0)
    until(cluster.is_settled, cluster.explain)
    until(lambda: started.metric("gpushare_placer_placed_total") == first_by_placer + 1, cluster.explain)


# --- backfill ---------------------------------------------------------------------------------------------------------


def test_small_pods_overtake_a_large_one_for_a_limited_time(cluster: Cluster) -> None:
    cluster.start("--patience-seconds=3")
    newcomers = cluster.start("--no-placer")  # a new pod may reach a replica that does not place
    for number in range(4):
        cluster.create_placed(builders.pod(f"small-{number}", request="0.5", uuid=f"GPU-node-a-{number}"))
    cluster.create(builders.pod("large", request="1", gpus="4"))
    for round_ in range(4, 40):
        cluster.create(builders.pod(f"small-{round_}", request="0.5"))
        cluster.delete(f"small-{round_ - 4}")
        if any(entry.is_backfill_reservation for entry in cluster.node().allocations):
            break
        time.sleep(0.2)  # the clock is what is tested
    else:
        raise AssertionError(cluster.explain())
    late = cluster.create(builders.pod("late", request="0.5"))
    assert late["spec"]["schedulingGates"]
    assert ledger.violations(cluster.node()) == []
    for name in names(cluster) - {"large", "late"}:
        cluster.delete(name)
    until(lambda: "schedulingGates" not in cluster.pod("large")["spec"], cluster.explain)
    until(cluster.is_settled, cluster.explain)
    assert annotations(cluster, "late").get(contract.ALLOCATION) is None
    assert newcomers.process.poll() is None


# --- gates of other controllers ---------------------------------------------------------------------------------------


def test_pod_with_a_foreign_gate_has_no_share(cluster: Cluster) -> None:
    cluster.start()
    queued = builders.pod("queued", request="1", gpus="4")
    queued["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    made = cluster.create(queued)
    assert made["metadata"]["annotations"][contract.REASON].startswith(
        'waits for another controller to remove the scheduling gate "example.com/quota"'
    )
    assert cluster.node().allocations == ()
    cluster.create_placed(builders.pod("free", request="0.5"))
    until(cluster.is_settled, cluster.explain)
    cluster.delete("free")
    ours = [{"name": contract.SCHEDULING_GATE}]
    opened = [{"op": "replace", "path": "/spec/schedulingGates", "value": ours}]
    cluster.administrator.patch(f"{cluster.path}/pods/queued", opened)
    until(lambda: "schedulingGates" not in cluster.pod("queued")["spec"], cluster.explain)
    until(cluster.is_settled, cluster.explain)


# --- bad input --------------------------------------------------------------------------------------------------------

REFUSED = {
    "negative": ({"request": "-0.5"}, 'request "-0.5" is not a part of a GPU'),
    "not a number": ({"request": "NaN"}, 'request "NaN" is not a part of a GPU'),
    "infinite": ({"memory": "Infinity"}, 'memory "Infinity" is not a quantity'),
    "negative memory": ({"memory": "-1Gi"}, 'memory "-1Gi" is not a quantity'),
    "negative count": ({"gpus": "-1"}, 'gpus "-1" is not a count'),
    "digits of another script": ({"request": "٠.٥"}, "is not a part of a GPU"),
    "unicode": ({"request": "\u202e💥"}, "is not a part of a GPU"),
    "a long value": ({"request": "9" * 100_000}, "is 100000 characters long"),
    "a long list": ({"request": "1", "model": "a," * 100_000}, "is 200000 characters long"),
    "a negative group": ({"request": "1", "group": "g", "group-size": "-3"}, 'group-size "-3" is not a count'),
    "a group of nonsense": ({"request": "1", "group": "g/../x", "group-size": "3"}, "is not a label value"),
}


def test_bad_numbers_and_texts_are_refused_with_a_short_sentence(cluster: Cluster) -> None:
    started = cluster.start()
    for what, (asked, said) in REFUSED.items():
        with pytest.raises(lab_errors.LabError) as refused:
            cluster.create(builders.pod(**asked))
        assert said in str(refused.value), what
        assert len(str(refused.value)) < 1500, what
    assert started.reviews() == {"denied": len(REFUSED)}
    assert cluster.node().allocations == ()


def test_as_many_annotations_as_fit_are_no_trouble(cluster: Cluster) -> None:
    cluster.start()
    full = builders.pod(request="0.5")
    full["metadata"]["annotations"] |= {f"example.com/note-{number}": "💥" * 10_000 for number in range(6)}
    made = cluster.create_placed(full)
    assert made["metadata"]["annotations"][contract.NODE] == "node-a"
    full = builders.pod("fuller", request="0.5")
    full["metadata"]["annotations"]["example.com/note"] = "x" * (256 * 1024)
    with pytest.raises(lab_errors.LabError, match="Too long"):
        cluster.create(full)
    until(lambda: len(cluster.node().allocations) <= 2, cluster.explain)


def test_concurrent_writers_do_not_keep_a_pod_gated(cluster: Cluster) -> None:
    """Another client writes to the gated pod as fast as it can, both fields that matter to us and others."""
    cluster.start()
    for number in range(4):
        cluster.create_placed(builders.pod(f"first-{number}", request="1"))
    cluster.create(builders.pod("waiting", request="1"))

    async def fight() -> int:
        async with api_client.connect(str(cluster.administrator.kubeconfig), component="test") as api:
            path = f"/api/v1/namespaces/{cluster.namespace}/pods/waiting"
            for number in range(3000):
                fought = await api.patch(path, {"metadata": {"annotations": {"example.com/mine": str(number)}}})
                if number == 100:
                    await api.delete(
                        f"/api/v1/namespaces/{cluster.namespace}/pods/first-0", query={"gracePeriodSeconds": 0}
                    )
                if not fought["spec"].get("schedulingGates"):
                    return number
        return -1

    assert asyncio.run(fight()) > 100
    until(cluster.is_settled, cluster.explain)
    forged = {"metadata": {"annotations": {contract.NODE: "elsewhere"}}}
    with pytest.raises(lab_errors.LabError, match="is managed by gpushare"):
        cluster.administrator.patch(f"{cluster.path}/pods/waiting", forged)


# --- the cost of waiting ----------------------------------------------------------------------------------------------


WAITING = 40
# Rounds without news follow each other more quickly.
OFTEN = (
    "-c",
    "import sys; from webhook import __main__, placer; placer.RESYNC_SECONDS = 6.0; sys.exit(__main__.main())",
)


def requests_so_far(cluster: Cluster) -> dict[str, float]:
    """Return the API server's count of requests by verb and resource, without watches and its own."""
    counts: dict[str, float] = {}
    for line in cluster.administrator.text("/metrics").splitlines():
        if line.startswith("apiserver_request_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            what = f"{labels['verb']} {labels['resource']}"
            counts[what] = counts.get(what, 0.0) + float(line.rpartition(" ")[2])
    return counts


def pods_told_of(cluster: Cluster, reason: str) -> set[str]:
    """Return the names of pods with such an Event; an Event whose answer was lost may exist twice."""
    return {event["involvedObject"]["name"] for event in cluster.events() if event["reason"] == reason}


def test_many_waiting_pods_cost_next_to_nothing(cluster: Cluster) -> None:
    started = cluster.start(program=OFTEN)
    cluster.create(builders.pod("all", request="1", gpus="4"))
    # Until then the reason of other pods says that it is only reserved; it is updated afterwards.
    until(lambda: [entry.reserved_until for entry in cluster.node().allocations] == [None], cluster.explain)
    manifests = [builders.pod(f"waiting-{number}", request="0.5") for number in range(WAITING)]
    for manifest in manifests:
        cluster.create(manifest)
    # Reasons are written ten a second at most, and the placer counts again once all are.
    until(lambda: started.metric("gpushare_placer_gated_pods") >= WAITING, started.explain, seconds=120.0)
    until(lambda: len(pods_told_of(cluster, contract.EVENT_GATED)) == WAITING, cluster.explain, seconds=120.0)
    before = requests_so_far(cluster)
    time.sleep(9.0)  # one round of the placer without news
    after = requests_so_far(cluster)
    made = {what: count - before.get(what, 0.0) for what, count in after.items() if count != before.get(what, 0.0)}
    ours = {what: count for what, count in made.items() if what.partition(" ")[2] in {"pods", "events", "gpunodes"}}
    about = {what: count for what, count in ours.items() if not what.startswith(("WATCH", "LIST"))}
    assert sum(about.values()) <= 5, made
