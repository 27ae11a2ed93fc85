"""Properties that platform teams require of a workload, checked for every workload of gpushare."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare import contract
from tests.config import manifests

Json = dict[str, Any]

COMPONENTS = manifests.CONFIG / "components"
MPS = manifests.documents(COMPONENTS / "mps" / "daemonset.yaml")
POLICIES = [manifest for manifest in manifests.objects() if manifest["kind"] == "NetworkPolicy"]
WORKLOADS = {
    doc["metadata"]["name"]: doc for doc in (*manifests.objects(), *MPS) if doc["kind"] in {"Deployment", "DaemonSet"}
}
# Killing the MPS keeper ends all programs that share by MPS, so only an administrator may end it.
NEVER_KILLED = {"gpushare-mps"}
SPEAKS_TO_THE_API_SERVER = {"gpushare-webhook", "gpushare-agent"}


def pod_of(name: str) -> Json:
    spec: Json = WORKLOADS[name]["spec"]["template"]["spec"]
    return spec


def container_of(name: str) -> Json:
    (container,) = pod_of(name)["containers"]
    result: Json = container
    return result


def test_all_workloads_are_checked() -> None:
    assert set(WORKLOADS) == SPEAKS_TO_THE_API_SERVER | NEVER_KILLED


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_request_resources_and_limit_memory(name: str) -> None:
    resources = container_of(name)["resources"]
    assert set(resources["requests"]) == {"cpu", "memory"}
    # A CPU limit would slow it down exactly when it is needed.
    assert set(resources.get("limits", {})) == (set() if name in NEVER_KILLED else {"memory"})


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_have_probes(name: str) -> None:
    container = container_of(name)
    probes = {key for key in container if key.endswith("Probe")}
    assert probes == (set() if name in NEVER_KILLED else {"startupProbe", "livenessProbe", "readinessProbe"})
    ports = {port["name"] for port in container.get("ports", ())}
    assert all(container[probe]["httpGet"]["port"] in ports for probe in probes)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_have_a_high_priority(name: str) -> None:
    cluster, node = "system-cluster-critical", "system-node-critical"
    assert pod_of(name)["priorityClassName"] == (cluster if name == "gpushare-webhook" else node)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_drop_unused_privileges(name: str) -> None:
    container = container_of(name)["securityContext"]
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    assert container["capabilities"]["drop"] == ["ALL"]
    profile = {**pod_of(name).get("securityContext", {}), **container}["seccompProfile"]
    assert profile == {"type": "RuntimeDefault"}
    assert "privileged" not in container
    assert not pod_of(name).get("hostNetwork")
    if name not in SPEAKS_TO_THE_API_SERVER:
        assert pod_of(name)["automountServiceAccountToken"] is False


def test_the_namespace_declares_its_pod_security_level() -> None:
    labels = manifests.named("Namespace", contract.SYSTEM_NAMESPACE)["metadata"]["labels"]
    # The agent uses host paths and the host's PID namespace, which only this level allows.
    modes = ("enforce", "audit", "warn")
    assert {key: labels[key] for key in labels} == {
        f"pod-security.kubernetes.io/{mode}": "privileged" for mode in modes
    }


def test_network_policies_cover_every_workload_and_port() -> None:
    every = {policy["metadata"]["name"]: policy["spec"] for policy in POLICIES}
    assert every.pop("gpushare-nothing-else") == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert set(every) == SPEAKS_TO_THE_API_SERVER
    for name, spec in every.items():
        assert spec["podSelector"]["matchLabels"] == WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]
        open_ports = [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
        assert sorted(open_ports) == sorted(port["name"] for port in container_of(name)["ports"])
        from_all = [port["port"] for rule in spec["ingress"] if "from" not in rule for port in rule["ports"]]
        assert from_all == (["reviews"] if name == "gpushare-webhook" else [])


def test_agents_accept_the_api_server_from_any_address() -> None:
    (agent,) = [policy["spec"] for policy in POLICIES if policy["metadata"]["name"] == "gpushare-agent"]
    (rule,) = agent["ingress"]
    assert {source["ipBlock"]["cidr"] for source in rule["from"] if "ipBlock" in source} == {"0.0.0.0/0", "::/0"}


def test_a_quota_admits_critical_pods() -> None:
    quota = manifests.named("ResourceQuota", "gpushare-critical-pods")["spec"]
    (scope,) = quota["scopeSelector"]["matchExpressions"]
    assert scope["scopeName"] == "PriorityClass"
    assert set(scope["values"]) == {pod_of(name)["priorityClassName"] for name in WORKLOADS}
    assert set(quota["hard"]) == {"pods"}


def test_openshift_constraints_allow_exactly_what_the_pods_need() -> None:
    constraints = {
        document["metadata"]["name"]: document
        for document in manifests.documents(COMPONENTS / "openshift/constraints.yaml")
    }
    assert set(constraints) == {"gpushare-agent", "gpushare-mps"}
    for name, allowed in constraints.items():
        security = container_of(name)["securityContext"]
        assert allowed["allowedCapabilities"] == security["capabilities"]["add"]
        assert allowed["requiredDropCapabilities"] == security["capabilities"]["drop"]
        assert allowed["allowPrivilegeEscalation"] is security["allowPrivilegeEscalation"]
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["allowHostPID"] is pod_of(name)["hostPID"]
        token = [] if name in NEVER_KILLED else ["projected"]
        assert (
            allowed["volumes"]
            == sorted({key for volume in pod_of(name)["volumes"] for key in volume} - {"name"}) + token
        )
        wide = {key for key in allowed if key.startswith("allow") and allowed[key] is True}
        assert wide == {"allowHostDirVolumePlugin", "allowHostPID"}


@pytest.mark.slow
def test_no_role_has_a_wildcard() -> None:
    roles = [manifest for manifest in manifests.objects() if manifest["kind"] in {"ClusterRole", "Role"}]
    rules = [rule for role in roles for rule in role["rules"]]
    assert len(roles) >= 4
    assert not [rule for rule in rules if "*" in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}]
