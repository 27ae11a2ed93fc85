"""GPUNodes that are deleted, emptied or corrupted by hand: living pods keep their shares."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract, ledger
from lab import lab_errors
from tests import builders, rights
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver


def test_shares_of_living_pods_are_restored_before_new_placements(cluster: Cluster) -> None:
    cluster.start()
    cluster.start()
    for number in range(4):
        cluster.create_placed(builders.pod(f"holder-{number}", request="0.7", memory="20Gi"))
    cluster.create_placed(builders.pod("two", containers=("a", "b"), **{"request.a": "0.2", "memory.b": "10%"}))
    until(cluster.is_settled, cluster.explain)
    before = {entry.id: entry for entry in cluster.node().allocations}
    cluster.delete_gpunode()
    cluster.remake(builders.node())
    # At once, before its pods are known.
    made = [cluster.create(builders.pod(f"newcomer-{number}", request="0.5")) for number in range(3)]
    until(lambda: set(before) <= {entry.id for entry in cluster.node().allocations}, cluster.explain)
    assert {entry.id: entry for entry in cluster.node().allocations if entry.id in before} == before
    until(cluster.is_settled, cluster.explain)
    assert all(contract.ALLOCATION not in pod["metadata"]["annotations"] for pod in made)
    assert ledger.violations(cluster.node()) == []
    until(lambda: len(cluster.notes(contract.EVENT_ADOPTED)) == 5, cluster.explain)


def test_a_new_node_is_opened_and_used(cluster: Cluster) -> None:
    cluster.start()
    cluster.delete_gpunode()
    cluster.remake(builders.node())
    until(cluster.is_open, cluster.explain)
    cluster.create(builders.pod("first", request="0.5"))
    until(lambda: "schedulingGates" not in cluster.pod("first")["spec"], cluster.explain)
    until(cluster.is_settled, cluster.explain)


def test_manually_emptied_allocations_are_restored(cluster: Cluster) -> None:
    replica = cluster.start()
    cluster.create_placed(builders.pod("holder", request="0.7"))
    until(cluster.is_settled, cluster.explain)
    before = cluster.node().allocations
    cluster.change("node-a", {"spec": {"allocations": []}})
    until(lambda: cluster.node().allocations == before, cluster.explain)
    until(lambda: bool(cluster.notes(contract.EVENT_ADOPTED)), cluster.explain)
    assert replica.metric('gpushare_placer_allocations_total{change="adopted"}') == 1
    used = rights.used_on(cluster.administrator, contract.WEBHOOK_SERVICE_ACCOUNT)
    assert ("pods", "get") in used


def test_share_that_no_longer_fits_is_reported_and_not_restored(cluster: Cluster) -> None:
    cluster.start()
    cluster.create_placed(builders.pod("holder", request="0.7", uuid="GPU-node-a-0"))
    until(cluster.is_settled, cluster.explain)
    usurper = {
        "id": "usurper",
        "pod": {"namespace": cluster.namespace, "name": "usurper", "uid": "of-nobody"},
        "shares": [{"containers": ["main"], "gpus": ["GPU-node-a-0"], "request": 90, "limit": 100, "memory": 1}],
    }
    cluster.create_placed(builders.pod("other", request="0.9", uuid="GPU-node-a-1"))
    until(cluster.is_settled, cluster.explain)
    uid = cluster.pod("other")["metadata"]["uid"]
    usurper["pod"] = {"namespace": cluster.namespace, "name": "other", "uid": uid}
    cluster.change("node-a", {"spec": {"allocations": [usurper]}})
    until(lambda: bool(cluster.notes(contract.EVENT_LOST)), cluster.explain)
    (said,) = cluster.notes(contract.EVENT_LOST)
    assert "could not be restored: node-a/0 does not have enough left for" in said
    assert ledger.violations(cluster.node()) == []


NONSENSE: dict[str, dict[str, Any]] = {
    "limit below request": {
        "shares": [{"containers": ["m"], "gpus": ["GPU-node-a-0"], "request": 50, "limit": 1, "memory": 1}]
    },
    "no such GPU": {
        "shares": [{"containers": ["m"], "gpus": ["GPU-of-nowhere"], "request": 5, "limit": 9, "memory": 1}]
    },
    "over-committed": {
        "shares": [
            {"containers": ["m"], "gpus": ["GPU-node-a-0"], "request": 100, "limit": 100, "memory": 2**62},
            {"containers": ["n"], "gpus": ["GPU-node-a-0"], "request": 100, "limit": 100, "memory": 2**62},
        ]
    },
    "unicode": {
        "shares": [{"containers": ["\u202e💥"], "gpus": ["GPU-node-a-0💥"], "request": 5, "limit": 1, "memory": 1}]
    },
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_reported_and_its_gpu_set_aside(cluster: Cluster, what: str) -> None:
    started = cluster.start()
    held = cluster.create_placed(builders.pod("holder", request="0.1", uuid="GPU-node-a-3"))
    until(cluster.is_settled, cluster.explain)
    entry = {
        "id": "nonsense",
        "pod": {"namespace": cluster.namespace, "name": "holder", "uid": held["metadata"]["uid"]},
        **NONSENSE[what],
    }
    cluster.change("node-a", [{"op": "add", "path": "/spec/allocations/-", "value": entry}])
    if what in {"over-committed", "no such GPU"}:
        # The entry names a pod that has another share: a second share is released once it was reported.
        until(lambda: bool(started.logged("The ledger has an invalid entry")), started.explain)
    else:
        until(lambda: started.metric("gpushare_placer_ledger_problems") == 1, started.explain)
        # Events of a node outlive a test: it is enough that this one is among them.
        sentence = "spec.allocations[1] is invalid and is ignored"
        until(
            lambda: any(sentence in said for said in cluster.notes(contract.EVENT_LEDGER, "default")), cluster.explain
        )
        asked = cluster.create(builders.pod("asks", request="0.1", uuid="GPU-node-a-0"))
        assert "1 unhealthy" in asked["metadata"]["annotations"][contract.REASON]
    cluster.create_placed(builders.pod("fine", request="0.1", uuid="GPU-node-a-2"))
    assert started.process.poll() is None


def test_entries_rejected_by_the_schema_cannot_be_written(cluster: Cluster) -> None:
    for patch in ({"allocations": "all of it"}, {"allocations": [{"id": ""}]}, {"cordoned": [1]}):
        with pytest.raises(lab_errors.LabError, match="is invalid"):
            cluster.change("node-a", {"spec": patch})
