"""The policy of the component `demand`, against an attacker with the webhook's ServiceAccount."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import contract
from gpushare.whatif.node_demand import NodeDemand
from lab import lab_errors
from tests.config import manifests
from tests.config.component_pods import ComponentPods
from tests.config.conftest import WAIT_SECONDS, Cluster, allow
from tests.config.installation import apply, withdraw
from tests.config.test_policy_pods import WEBHOOK
from tests.config.test_rbac import may
from tests.provisioning_request_crd import CRD
from webhook import webhook_settings
from webhook.controllers.demand import demand_pods, gang_demand, provisioning_requests

pytestmark = pytest.mark.apiserver

COMPONENT = manifests.CONFIG / "components" / "demand"
GANGS = manifests.CONFIG / "components" / "demand-gangs"
FILES = ("namespace", "template", "rights", "../demand-gangs/rights", "../demand-gangs/policy", "policy")
PODS = demand_pods.PODS_PATH
POD_SETS = 32  # of one ProvisioningRequest, by its CRD
DEMAND = NodeDemand("{}", "NVIDIA-L4", 2, 1000, 2**30, ("uid",))


def made(template: dict[str, Any]) -> dict[str, Any]:
    return demand_pods.manifest(template, DEMAND, resource=contract.RESOURCE_PERCENT, excluded=["node-a"])


DEMAND_PODS = ComponentPods("demand", PODS, made)
manifest, changed, refusal = DEMAND_PODS.manifest, DEMAND_PODS.changed, DEMAND_PODS.refusal


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """With the component, once its policy is in force."""
    DEMAND_PODS.install(installed, FILES)
    apply(installed.administrator, [CRD])
    installed.administrator.wait_until_established(CRD["metadata"]["name"])
    yield installed
    withdraw(installed.administrator, [*DEMAND_PODS.documents(*FILES[-3:]), CRD])


def test_the_webhook_may_create_its_demand_pods_and_no_other_pod(cluster: Cluster) -> None:
    DEMAND_PODS.check_that_no_other_is_admitted(cluster)


def template(**spec: Any) -> dict[str, Any]:
    """Return a PodTemplate as the webhook creates it for a gang."""
    return gang_demand.pod_template(changed(spec=spec))


def request(count: int = 16, class_name: str = gang_demand.ATOMIC) -> dict[str, Any]:
    """Return a ProvisioningRequest as the webhook creates it for a gang, for so many pods of two kinds."""
    gang = gang_demand.GangDemand("default/g")
    demands = [DEMAND] * (count - 1) + [dataclasses.replace(DEMAND, gpus=1)]
    return gang_demand.manifest(gang, demands, ["a", "b"], class_name)


def test_the_webhook_may_create_the_templates_of_its_provisioning_requests_and_no_others(cluster: Cluster) -> None:
    templates = provisioning_requests.TEMPLATES_PATH
    assert refusal(cluster, template(), templates) == ""
    only = "may have only one container, the priority gpushare-demand, and neither volumes nor a token"
    container = manifest()["spec"]["containers"][0]
    for spec in (
        {"containers": [container, {**container, "name": "second"}]},
        {"initContainers": [{**container, "name": "first"}]},
        {"volumes": [{"name": "x", "emptyDir": {}}]},
        {"priorityClassName": "system-node-critical"},
        {"automountServiceAccountToken": True},
    ):
        assert only in refusal(cluster, template(**spec), templates), spec
    without_label = template()
    del without_label["metadata"]["labels"]
    assert "only PodTemplates with the label gpushare.io/demand" in refusal(cluster, without_label, templates)


def test_the_webhook_may_delete_its_templates_and_not_the_administrators(cluster: Cluster) -> None:
    own, templates = template(), provisioning_requests.TEMPLATES_PATH
    cluster.administrator.create(templates, own, user=WEBHOOK)
    as_webhook = f"--as={WEBHOOK}", f"--namespace={contract.DEMAND_NAMESPACE}"
    cluster.kubectl("delete", "podtemplate", own["metadata"]["name"], "--wait=false", *as_webhook)
    with pytest.raises(lab_errors.LabError, match=r"only PodTemplates with the label gpushare\.io/demand"):
        cluster.kubectl("delete", "podtemplate", contract.DEMAND_TEMPLATE, "--wait=false", *as_webhook)


def test_the_webhook_may_ask_for_few_pods_of_one_class(cluster: Cluster) -> None:
    path = provisioning_requests.PATH
    deadline = time.monotonic() + WAIT_SECONDS
    while (said := refusal(cluster, request(17), path)) == "" and time.monotonic() < deadline:
        time.sleep(0.1)  # the API server reads the policy again once the CRD is there
    assert "may ask for no more than 16 pods" in said
    assert refusal(cluster, request(), path) == ""
    assert "only of the class best-effort-atomic-scale-up" in refusal(cluster, request(class_name="mine"), path)


def test_the_right_is_for_this_namespace_alone(cluster: Cluster) -> None:
    for namespace in ("default", contract.SYSTEM_NAMESPACE, "kube-system"):
        for verb in ("create", "delete"):
            assert not may(cluster, WEBHOOK, verb, "pods", namespace=namespace)
            assert not may(cluster, WEBHOOK, verb, "provisioningrequests.autoscaling.x-k8s.io", namespace=namespace)
        path = f"/api/v1/namespaces/{namespace}/pods"
        made = {**manifest(), "metadata": {**manifest()["metadata"], "namespace": namespace}}
        assert 'cannot create resource "pods"' in refusal(cluster, made, path)
    for verb in ("create", "delete"):
        assert may(cluster, WEBHOOK, verb, "pods", namespace=contract.DEMAND_NAMESPACE)
    for verb, resource in (("update", "podtemplates"), ("patch", "podtemplates"), ("patch", "resourcequotas")):
        here = contract.DEMAND_NAMESPACE
        assert not may(cluster, WEBHOOK, verb, resource, namespace=here)


def test_the_policy_forbids_what_a_wider_role_would_allow(cluster: Cluster) -> None:
    allow(cluster, WEBHOOK, ["create"], ["pods"], "too-much")
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    made = {**manifest(), "metadata": {**manifest()["metadata"], "namespace": cluster.namespace}}
    try:
        assert "may create pods only in the namespace gpushare-demand" in refusal(cluster, made, path)
    finally:
        group = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
        for kind in ("rolebindings", "roles"):
            cluster.administrator.delete(f"{group}/{kind}/too-much")


def test_quota_priority_and_settings_agree() -> None:
    (quota,) = (made for made in manifests.documents(COMPONENT / "namespace.yaml") if made["kind"] == "ResourceQuota")
    most, gangs = webhook_settings.WebhookSettings().demand_max_gpus, provisioning_requests.MAX_REQUESTS
    assert quota["spec"]["hard"] == {
        "pods": str(most),
        f"requests.{contract.RESOURCE_PERCENT}": str(100 * most),
        "requests.nvidia.com/gpu": str(most),
        "count/provisioningrequests.autoscaling.x-k8s.io": str(gangs),
        "count/podtemplates": str(1 + gangs * POD_SETS),
    }
    (priority,) = (made for made in manifests.documents(COMPONENT / "template.yaml") if made["kind"] == "PriorityClass")
    assert priority["value"] == -10  # below that, Cluster Autoscaler ignores a pod
    names = {made["metadata"]["name"] for made in manifests.documents(COMPONENT / "namespace.yaml")}
    assert names == {contract.DEMAND_NAMESPACE, "gpushare-demand"}
