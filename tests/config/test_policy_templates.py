"""Warnings for workloads whose pods would be rejected or would get no GPU."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpushare import contract
from tests.config import manifests
from tests.config.conftest import WAIT_SECONDS, Cluster
from tests.config.test_manifests import SHARE_KEYS_IN_CEL, keys_in

pytestmark = pytest.mark.apiserver


def workload(kind: str, *, own: dict[str, str] | None = None, **template: str) -> dict[str, Any]:
    labels = {"app": "one"}
    annotations = {contract.PREFIX + key.replace("_", "-"): value for key, value in template.items()}
    spec = {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never" if "Job" in kind else "Always"}
    made: dict[str, Any] = {"template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}}
    if "Job" not in kind:
        made["selector"] = {"matchLabels": labels}
    if kind == "StatefulSet":
        made["serviceName"] = "one"
    if kind == "CronJob":
        del made["template"]["metadata"]["labels"]
        made = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": made}}
    group = "batch/v1" if "Job" in kind else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "one", "annotations": own or {}}, "spec": made}


KINDS = ("CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet")
WRONG_PLACE = {f"{contract.PREFIX}request": "0.5"}


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Cluster:
    """The cluster once the policy is enforced."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not warnings_of(installed, workload("Deployment", own=WRONG_PLACE)):
        assert time.monotonic() < deadline, "gpushare-templates is not in force"
        time.sleep(0.1)
    return installed


def warnings_of(cluster: Cluster, manifest: dict[str, Any]) -> str:
    """Return the warnings of a dry run."""
    return cluster.warned(manifest, "--dry-run=server")


@pytest.mark.parametrize("kind", KINDS)
def test_an_annotation_on_the_workload_itself_is_a_warning(cluster: Cluster, kind: str) -> None:
    place = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    sentence = (
        f"gpushare.io/request on the {kind} itself gives its pods no GPU: write it into {place}.metadata.annotations"
    )
    assert sentence in warnings_of(cluster, workload(kind, own=WRONG_PLACE))
    assert warnings_of(cluster, workload(kind, own=WRONG_PLACE, request="0.5")) == ""


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ({"request": "1.5"}, 'gpushare.io/request "1.5" is not a part of a GPU'),
        ({"request": "0.5", "limit.main": "a lot"}, 'gpushare.io/limit.main "a lot" is not a part of a GPU'),
        ({"memory": "8GB"}, 'gpushare.io/memory "8GB" is not an amount of memory'),
        ({"memory": "8192"}, 'gpushare.io/memory "8192" is not an amount of memory: write bytes with their unit'),
        ({"request": "0.5", "memroy": "8Gi"}, "gpushare.io/memroy in spec.template.metadata.annotations is unknown or managed by gpushare"),
        ({"request": "0.5", "allocation": "mine"}, "gpushare.io/allocation in spec.template.metadata.annotations is unknown or managed"),
        ({"model": "*A100*"}, "nothing in spec.template.metadata.annotations requests a share of a GPU"),
    ],
)  # fmt: skip
def test_an_invalid_value_in_a_template_is_a_warning(cluster: Cluster, template: dict[str, str], sentence: str) -> None:
    assert sentence in warnings_of(cluster, workload("Deployment", **template))


@pytest.mark.parametrize("kind", KINDS)
def test_valid_and_unrelated_workloads_give_no_warning(cluster: Cluster, kind: str) -> None:
    right = {
        "request": "50%",
        "limit": "1",
        "memory": "8Gi",
        "memory.main": "25%",
        "model": "*A100*",
        "no_evict": "true",
    }
    assert warnings_of(cluster, workload(kind, **right)) == ""
    assert warnings_of(cluster, workload(kind, own={"example.org/request": "x"})) == ""


def test_objects_created_by_controllers_give_no_warning(cluster: Cluster) -> None:
    made = workload("ReplicaSet", own=WRONG_PLACE)
    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "one",
        "uid": "00000000-0000-0000-0000-000000000000",
    }
    made["metadata"]["ownerReferences"] = [owner]
    assert warnings_of(cluster, made) == ""


def test_the_policy_knows_the_keys_of_the_contract() -> None:
    spec = manifests.named("ValidatingAdmissionPolicy", "gpushare-templates")["spec"]
    variables = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    assert keys_in(variables["asks"]) == keys_in(variables["misplaced"]) == SHARE_KEYS_IN_CEL
    assert keys_in(variables["unknown"]) - {contract.PREFIX} == {*contract.REQUEST_KEYS} - {*contract.SHARE_KEYS}
    pods = manifests.named("ValidatingAdmissionPolicy", "gpushare-pods")["spec"]["variables"]
    (compute,) = (pod["expression"] for pod in pods if pod["name"] == "wrongCompute")
    assert variables["wrongCompute"].endswith(compute[compute.index("'^(") :])


@pytest.mark.parametrize(
    ("size", "more", "is_told"),
    [
        ("2", {"replicas": 2}, True),
        ("2", {"replicas": 2, "podManagementPolicy": "Parallel"}, False),
        ("2", {"replicas": 1}, False),
        ("2-4", {"replicas": 2}, True),
        ("1-4", {"replicas": 2}, False),
        ("12", {"replicas": 2}, True),
    ],
)
def test_a_group_with_sequential_pods_is_a_warning(
    cluster: Cluster, size: str, more: dict[str, Any], is_told: bool
) -> None:
    manifest = workload("StatefulSet", request="0.5", group="g", group_size=size)
    manifest["spec"] |= more
    assert ("set spec.podManagementPolicy to Parallel" in warnings_of(cluster, manifest)) is is_told
