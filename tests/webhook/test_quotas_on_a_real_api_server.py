"""The limits that a ResourceQuota sets for shares, and those that it cannot, as docs/placement.md says."""

from __future__ import annotations

import re

import pytest

from gpushare import contract
from lab import lab_errors
from tests import builders
from tests.webhook.conftest import Cluster
from tests.webhook.replica import REPOSITORY, until

pytestmark = pytest.mark.apiserver

PERCENT, MEMORY, IDLE = (
    f"requests.{resource}" for resource in (contract.RESOURCE_PERCENT, contract.RESOURCE_MEMORY, contract.RESOURCE_IDLE)
)
POLICIES = "admissionregistration.k8s.io/v1"
PLACEMENT = REPOSITORY / "docs" / "placement.md"
HARD = {PERCENT: "60", MEMORY: "20Gi", IDLE: "4", "pods": "3"}


def used(cluster: Cluster) -> dict[str, str]:
    counted: dict[str, str] = cluster.administrator.read(f"{cluster.path}/resourcequotas/gpus")["status"]["used"]
    return counted


def test_memory_quota_cannot_be_bypassed_by_percentages(cluster: Cluster) -> None:
    started = cluster.start()
    cluster.add_quota("gpus", HARD)
    until(lambda: cluster.refuses(builders.pod("in-bytes", memory="30Gi"), "exceeded quota"), cluster.explain)
    part = builders.pod("by-percent", request="0.01", memory="100%")
    until(lambda: cluster.refuses(part, "requests 100% of a GPU's memory"), cluster.explain)  # it hears of it later
    started.count_from_here()
    with pytest.raises(lab_errors.LabError, match=r"write gpushare.io/memory in bytes"):
        cluster.create(part)
    with pytest.raises(lab_errors.LabError, match="the ResourceQuota gpus of its namespace counts bytes"):
        cluster.create(builders.pod("idle", memory="25%"))
    assert started.reviews() == {"denied": 2}
    assert cluster.node().allocations == ()
    # A part that is no larger than the request is counted with it.
    cluster.create_placed(builders.pod("as-much", request="0.5", memory="50%"))
    assert used(cluster) == {PERCENT: "50", MEMORY: "0", IDLE: "0", "pods": "1"}
    cluster.create_placed(builders.pod("in-bytes", memory="20Gi"))
    assert used(cluster) == {PERCENT: "50", MEMORY: "20Gi", IDLE: "1", "pods": "2"}
    with pytest.raises(
        lab_errors.LabError, match=r"exceeded quota: gpus, requested: requests\.gpushare\.io/gpu-memory"
    ):
        cluster.create(builders.pod("more", memory="1Gi"))
    cluster.create_placed(builders.pod("third", request="0.05"))

    def is_gated() -> bool:
        """The webhook sees the used amount a moment later."""
        cluster.refuses(builders.pod("fourth", request="0.01"), "exceeded quota")
        return str(started.logged("Answered a review")[-1]["decision"]).startswith("gated")

    until(is_gated, cluster.explain)
    with pytest.raises(lab_errors.LabError, match="exceeded quota: gpus, requested: pods=1, used: pods=3"):
        cluster.create(builders.pod("fourth", request="0.01"))
    until(lambda: len(cluster.node().allocations) == 3, cluster.explain)  # no more than the pods that have one


def test_exclusion_labels_take_no_more_gpus_than_the_quota_allows(cluster: Cluster) -> None:
    started = cluster.start()
    cluster.add_quota("gpus", {PERCENT: "200"})
    probe = builders.pod("probe", request="0.01", memory="1Mi", exclusion="probe")

    def is_known() -> bool:
        """Whether the webhook has seen the quota."""
        cluster.create(probe, dry_run=True)
        return "the placer" in str(started.logged("Answered a review")[-1]["decision"])

    until(is_known, cluster.explain)
    for number in range(8):
        cluster.create(builders.pod(f"pod-{number}", request="0.01", memory="1Mi", exclusion=f"label-{number}"))

    def said() -> list[str]:
        return [str(pod["metadata"]["annotations"].get(contract.REASON, "")) for pod in cluster.pods()]

    until(
        lambda: sum("already has 2 of the 2 that its ResourceQuota gpus allows" in text for text in said()) == 6, said
    )
    assert len({uuid for entry in cluster.node().allocations for uuid in entry.gpu_uuids}) == 2
    with cluster.administrator.namespace() as other:
        path = f"/api/v1/namespaces/{other}/pods"
        made = cluster.administrator.create(path, builders.pod("other", namespace=other, request="0.01"))
        assert contract.ALLOCATION in made["metadata"]["annotations"]


def test_the_policy_in_the_manual_forbids_exclusion_labels(cluster: Cluster) -> None:
    quoted = re.findall(r"`([^`]*)`", PLACEMENT.read_text())
    (expression,) = (" ".join(text.split()) for text in quoted if "'gpushare.io/exclusion' in" in text)
    named, of_pods = {"name": cluster.namespace}, {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    constraints = {"resourceRules": [{**of_pods, "operations": ["CREATE"]}]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}}
    policy = {"matchConstraints": constraints, "validations": [{"expression": expression}]}
    binding = {"policyName": cluster.namespace, "validationActions": ["Deny"], "matchResources": here}
    for kind, spec in (("policies", policy), ("policybindings", binding)):
        cluster.administrator.create(f"/apis/{POLICIES}/validatingadmission{kind}", {"metadata": named, "spec": spec})
    cluster.start()
    try:
        labelled = builders.pod("labelled", request="0.1", exclusion="red")
        until(lambda: cluster.refuses(labelled, "failed expression"), cluster.explain)
        cluster.create_placed(builders.pod("plain", request="0.1"))
    finally:
        for kind in ("policies", "policybindings"):
            cluster.administrator.delete(f"/apis/{POLICIES}/validatingadmission{kind}/{cluster.namespace}")
