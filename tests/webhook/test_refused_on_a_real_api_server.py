"""Pods that the API server rejects after the webhook: how much they keep from other pods meanwhile."""

from __future__ import annotations

import json

import pytest

from gpushare import contract
from lab import lab_errors
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until

pytestmark = pytest.mark.apiserver


def refused(cluster: Cluster, name: str, *, said: str) -> None:
    with pytest.raises(lab_errors.LabError) as caught:
        cluster.create(builders.pod(name, request="1"))
    assert said in str(caught.value)


def test_a_pod_that_a_quota_refuses_keeps_nothing_from_others(cluster: Cluster) -> None:
    started = cluster.start("--no-placer")
    cluster.add_quota("gpus", {f"requests.{contract.RESOURCE_PERCENT}": "0"})

    def is_known() -> bool:
        """API server and webhook see the quota a moment later."""
        return not is_placed(cluster) and str(started.logged("Answered a review")[-1]["decision"]).startswith("gated")

    until(is_known, started.explain)
    started.count_from_here()
    for number in range(3):
        refused(cluster, f"refused-{number}", said="exceeded quota")
    assert cluster.node().allocations == ()
    assert started.reviews() == {"gated": 3}
    # A watch shows that the quota is free again, so no pod has to wait for the placer then.
    cluster.administrator.delete(f"{cluster.path}/resourcequotas/gpus")
    until(lambda: is_placed(cluster), started.explain)


def is_placed(cluster: Cluster) -> bool:
    try:
        made = cluster.create(builders.pod("tried", request="0.1"), dry_run=True)
    except lab_errors.LabError:
        return False
    return contract.ALLOCATION in made["metadata"]["annotations"]


def test_rejected_pods_reserve_little_and_then_nothing(cluster: Cluster) -> None:
    started = cluster.start("--reservation-seconds=1")
    level = "pod-security.kubernetes.io/enforce"
    cluster.administrator.patch(cluster.path, {"metadata": {"labels": {level: "restricted"}}})
    until(lambda: not is_placed(cluster), started.explain)
    for number in range(4):
        refused(cluster, f"refused-{number}", said="violates PodSecurity")
    assert len(cluster.node().allocations) <= 2  # of four GPUs
    until(lambda: cluster.node().allocations == (), started.explain)

    def is_known() -> bool:
        refused(cluster, "again", said="violates PodSecurity")
        until(lambda: cluster.node().allocations == (), started.explain)
        return any(
            "rejected after placement in the last hour" in line["decision"]
            for line in started.logged("Answered a review")
        )

    until(is_known, started.explain, seconds=60.0)
    placed = started.reviews()["placed"]
    refused(cluster, "last", said="violates PodSecurity")
    assert started.reviews()["placed"] == placed
    cluster.administrator.patch(cluster.path, {"metadata": {"labels": {level: None}}})
    good = builders.pod("good", request="1")
    until(lambda: not cluster.refuses(good, "violates PodSecurity"), cluster.explain)
    cluster.create_placed(good)  # stored, and placed by the placer
    until(cluster.is_settled, cluster.explain)


def test_share_rejected_by_a_policy_does_not_block_other_pods(cluster: Cluster) -> None:
    started = cluster.start("--reservation-seconds=1")
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "tidy-names"},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [contract.GROUP_NAME],
                        "apiVersions": ["*"],
                        "operations": ["UPDATE"],
                        "resources": ["gpunodes"],
                    }
                ]
            },
            "validations": [
                {"expression": "object.spec.allocations.all(one, one.pod.name != 'odd')", "message": "an untidy name"}
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "tidy-names"},
        "spec": {"policyName": "tidy-names", "validationActions": ["Deny"]},
    }
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": [policy, binding]})
    cluster.kubectl("create", "-f", "-", input=objects)
    try:

        def is_refused() -> bool:
            made = cluster.create(builders.pod("odd", request="0.1"))
            if contract.ALLOCATION in made["metadata"]["annotations"]:  # the policy is not in force yet
                cluster.delete("odd")
                until(lambda: cluster.node().allocations == (), started.explain)
                return False
            assert "an untidy name" in made["metadata"]["annotations"][contract.REASON]
            return True

        until(is_refused, started.explain)
        for number in range(3):
            cluster.create_placed(builders.pod(f"good-{number}", request="0.1"))
        until(lambda: "an untidy name" in json.dumps(cluster.events("default")), started.explain)
    finally:
        cluster.kubectl("delete", "--wait=false", "-f", "-", input=objects)
    until(lambda: contract.ALLOCATION in cluster.pod("odd")["metadata"]["annotations"], started.explain, seconds=120.0)
    until(cluster.is_settled, cluster.explain)
