"""The policy of the component `borrow`, against an attacker with the webhook's ServiceAccount."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import contract
from lab import lab_errors
from tests.config import manifests
from tests.config.component_pods import ComponentPods
from tests.config.conftest import WAIT_SECONDS, Cluster, allow
from tests.config.installation import apply, withdraw
from tests.config.test_policy_pods import WEBHOOK
from tests.config.test_rbac import may
from webhook import webhook_settings
from webhook.controllers.borrow import placeholders

pytestmark = pytest.mark.apiserver

COMPONENT = manifests.CONFIG / "components" / "borrow"
FILES = ("namespace", "template", "rights", "policy")
PODS = placeholders.PODS_PATH
PLACEHOLDERS = ComponentPods("borrow", PODS, lambda template: placeholders.manifest(template, "node-a"))
manifest, changed, refusal = PLACEHOLDERS.manifest, PLACEHOLDERS.changed, PLACEHOLDERS.refusal


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """With the component, once its policy is in force."""
    PLACEHOLDERS.install(installed, FILES)
    yield installed
    withdraw(installed.administrator, PLACEHOLDERS.documents("policy"))


def test_the_webhook_may_create_its_placeholders_and_no_other_pod(cluster: Cluster) -> None:
    PLACEHOLDERS.check_that_no_other_is_admitted(cluster)


def test_the_right_is_for_this_namespace_alone(cluster: Cluster) -> None:
    for namespace in ("default", contract.SYSTEM_NAMESPACE, "kube-system"):
        for verb in ("create", "delete"):
            assert not may(cluster, WEBHOOK, verb, "pods", namespace=namespace)
        path = f"/api/v1/namespaces/{namespace}/pods"
        made = {**manifest(), "metadata": {**manifest()["metadata"], "namespace": namespace}}
        assert 'cannot create resource "pods"' in refusal(cluster, made, path)
    for verb in ("create", "delete"):
        assert may(cluster, WEBHOOK, verb, "pods", namespace=contract.BORROW_NAMESPACE)
    for verb, resource in (("update", "podtemplates"), ("delete", "podtemplates"), ("patch", "resourcequotas")):
        here = contract.BORROW_NAMESPACE
        assert not may(cluster, WEBHOOK, verb, resource, namespace=here)


def test_the_policy_forbids_what_a_wider_role_would_allow(cluster: Cluster) -> None:
    allow(cluster, WEBHOOK, ["create"], ["pods"], "too-much")
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    made = {**manifest(), "metadata": {**manifest()["metadata"], "namespace": cluster.namespace}}
    try:
        assert "may create pods only in the namespace gpushare-borrow" in refusal(cluster, made, path)
    finally:
        group = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
        for kind in ("rolebindings", "roles"):
            cluster.administrator.delete(f"{group}/{kind}/too-much")


def test_a_missing_template_stops_only_the_pods_of_this_namespace(cluster: Cluster) -> None:
    withdraw(
        cluster.administrator, [each for each in PLACEHOLDERS.documents("template") if each["kind"] == "PodTemplate"]
    )
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while "no params found" not in refusal(cluster, manifest()):
            assert time.monotonic() < deadline, f"the template is still known after {WAIT_SECONDS} s"
            time.sleep(0.1)
        other = {**manifest(), "metadata": {**manifest()["metadata"], "namespace": cluster.namespace}}
        cluster.administrator.create(f"/api/v1/namespaces/{cluster.namespace}/pods", other, dry_run=True)
    finally:
        apply(cluster.administrator, PLACEHOLDERS.documents("template"))


def test_quota_priority_and_settings_agree() -> None:
    (quota,) = (made for made in manifests.documents(COMPONENT / "namespace.yaml") if made["kind"] == "ResourceQuota")
    (kustomization,) = manifests.documents(COMPONENT / "kustomization.yaml")
    most = quota["spec"]["hard"]["pods"]
    assert quota["spec"]["hard"] == {"pods": most, "requests.nvidia.com/gpu": most}
    assert f"--borrow-max-gpus={most}" in kustomization["patches"][0]["patch"]
    assert webhook_settings.WebhookSettings().borrow_max_gpus == 0  # off by default
    (priority,) = (made for made in manifests.documents(COMPONENT / "template.yaml") if made["kind"] == "PriorityClass")
    assert priority["value"] < 0
    assert priority["preemptionPolicy"] == "Never"


def test_the_webhook_may_only_change_the_label_of_a_placeholder_that_is_in_use(cluster: Cluster) -> None:
    name = cluster.administrator.create(PODS, manifest(), user=WEBHOOK)["metadata"]["name"]
    path = f"{PODS}/{name}"

    def refused(body: dict[str, Any] | list[dict[str, Any]]) -> str:
        try:
            cluster.administrator.patch(path, body, user=WEBHOOK)
        except lab_errors.LabError as error:
            return str(error)
        return ""

    placeholder = placeholders.read(cluster.administrator.read(path))
    for in_use in (True, True, False):
        placeholder = dataclasses.replace(placeholder, in_use=in_use)
        assert refused(placeholders.label(placeholder)) == ""
        assert placeholders.read(cluster.administrator.read(path)) == placeholder
    for labels in (
        {"app.kubernetes.io/name": "x"},
        {"app.kubernetes.io/name": None},
        {contract.SHARE_LABEL: "true"},
        {contract.IN_USE_LABEL: "false"},
    ):
        assert "may not change labels" in refused({"metadata": {"labels": labels}}), labels
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
    assert "may not change anything else in its spec" in refused(image)
    cluster.administrator.delete(path)
    (budget,) = (
        made for made in manifests.documents(COMPONENT / "namespace.yaml") if made["kind"] == "PodDisruptionBudget"
    )
    assert budget["spec"]["selector"] == {"matchLabels": {contract.IN_USE_LABEL: contract.IN_USE_VALUE}}


def test_both_components_may_be_installed(cluster: Cluster) -> None:
    demand = ComponentPods("demand", PODS, PLACEHOLDERS.made)
    apply(cluster.administrator, demand.documents(*FILES))
    try:
        assert refusal(cluster, manifest()) == ""
    finally:
        withdraw(cluster.administrator, demand.documents("policy"))


def test_a_placeholder_has_the_resources_and_tolerations_of_the_template(cluster: Cluster) -> None:
    resources = manifest()["spec"]["containers"][0]["resources"]
    requests, limits = resources["requests"], resources["limits"]
    for other in (
        {"requests": {**requests, "cpu": "64"}, "limits": limits},
        {"requests": requests, "limits": {contract.BORROWED_RESOURCE: "1"}},
        {"requests": requests, "limits": {**limits, "memory": "1Ti"}},
        {"requests": requests, "limits": {**limits, "example.com/fpga": "1"}},
    ):
        assert "resources and tolerations" in refusal(cluster, changed(resources=other)), other
    everywhere = changed(spec={"tolerations": [{"operator": "Exists"}]})
    assert "resources and tolerations" in refusal(cluster, everywhere)


def test_a_placeholder_has_one_gpu(cluster: Cluster) -> None:
    for gpus in ("2", "0"):
        resources = {"limits": {contract.BORROWED_RESOURCE: gpus}}
        assert "must have one nvidia.com/gpu" in refusal(cluster, changed(resources=resources))
