"""The effect of each value, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpushare
from deviceplugin import agent_settings
from gpushare import contract
from gpushare.config import config_choice, config_file
from tests.chart.conftest import CHART, Helm
from webhook import webhook_settings

pytestmark = pytest.mark.apiserver  # for Helm, which is built like the server; no server runs

Json = dict[str, Any]
DIGEST = "sha256:" + "0123456789abcdef" * 4


def pod_of(workload: Json) -> Json:
    spec: Json = workload["spec"]["template"]["spec"]
    return spec


def container_of(workload: Json) -> Json:
    (container,) = pod_of(workload)["containers"]
    result: Json = container
    return result


def webhook(helm: Helm, values: Json) -> Json:
    return helm.one("Deployment", "gpushare-webhook", values)


def defrag(helm: Helm, values: Json) -> Json:
    """The CronJob's spec."""
    spec: Json = helm.one("CronJob", "gpushare-defrag", {"defrag.enabled": True, **values})["spec"]
    return spec


def agent(helm: Helm, values: Json) -> Json:
    return helm.one("DaemonSet", "gpushare-agent", values)


TYPOS: dict[str, tuple[Json, str]] = {
    "top": ({"webhok": {"replicas": 3}}, "additional properties 'webhok' not allowed"),
    "replicas": ({"webhook.replicaz": 3}, "at '/webhook': additional properties 'replicaz' not allowed"),
    "image": ({"agent.image.tagg": "1"}, "at '/agent/image': additional properties 'tagg' not allowed"),
    "resources": ({"agent.resources.limit.memory": "1Gi"}, "at '/agent/resources': additional properties 'limit'"),
    "monitoring": ({"monitoring.serviceMonitor.enable": True}, "additional properties 'enable' not allowed"),
    "type": ({"webhook.replicas": "two"}, "at '/webhook/replicas': got string, want integer"),
    "none": ({"webhook.replicas": 0}, "at '/webhook/replicas': minimum: got 0, want 1"),
    "word": ({"webhook.policy": "best"}, "at '/webhook/policy': value must be one of"),
    "isolation": ({"webhook.defaultIsolation": "none"}, "at '/webhook/defaultIsolation': value must be one of"),
    "digest": ({"webhook.image.digest": "0.3.0"}, "at '/webhook/image/digest'"),
    "timeout": ({"webhook.timeoutSeconds": 31}, "at '/webhook/timeoutSeconds': maximum: got 31, want 30"),
    "strategy": ({"agent.deviceListStrategy": "cdi"}, "at '/agent/deviceListStrategy'"),
    "flag": ({"agent.extraArgs": ["log-level=debug"]}, "at '/agent/extraArgs/0'"),
    "range": ({"networkPolicy.apiServerCIDRs": ["10.0.0.1"]}, "at '/networkPolicy/apiServerCIDRs/0'"),
    "cdi": (
        {"agent.deviceListStrategy": "cdi-cri"},
        "agent.deviceListStrategy is cdi-cri, which requires CDI: set agent.cdi.enabled to true",
    ),
    "driver-root": (
        {"agent.nvidiaDriverRoot": "/run/nvidia/driver"},
        "agent.nvidiaDriverRoot is /run/nvidia/driver, which only CDI uses",
    ),
}


@pytest.mark.parametrize(("values", "says"), TYPOS.values(), ids=TYPOS)
def test_an_invalid_value_is_rejected_by_name(helm4: Helm, values: Json, says: str) -> None:
    assert says in helm4.refused(values)


def test_all_typos_of_a_values_file_are_reported_at_once(helm: Helm, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("webhook:\n  replicaz: 3\nagent:\n  cdi:\n    enable: true\n")
    refused = helm.refused({}, f"--values={file}")
    assert "at '/webhook': additional properties 'replicaz' not allowed" in refused
    assert "at '/agent/cdi': additional properties 'enable' not allowed" in refused


def test_an_older_kubernetes_is_rejected(helm: Helm) -> None:
    assert "chart requires kubeVersion: >=1.30.0-0" in helm.refused({}, "--kube-version=1.29.9")
    # The version formats of GKE and EKS.
    assert helm.rendered({}, "--kube-version=1.30.1-gke.100")


def test_a_subchart_accepts_global_values(helm4: Helm) -> None:
    assert helm4.rendered({"global.storageClass": "fast", "enabled": True}) == helm4.rendered()


IMAGES: dict[str, tuple[Json, str]] = {
    "default": ({}, f"localhost/gpushare/webhook:{gpushare.__version__}"),
    "global": (
        {"global.imageRegistry": "registry.example/team", "global.imageTag": "1"},
        "registry.example/team/gpushare/webhook:1",
    ),
    "own": (
        {"webhook.image.registry": "registry.example", "webhook.image.repository": "a/b", "webhook.image.tag": "2"},
        "registry.example/a/b:2",
    ),
    "pushed": (
        {"webhook.image.repository": "127.0.0.1:5000/team/webhook", "webhook.image.digest": DIGEST},
        f"127.0.0.1:5000/team/webhook@{DIGEST}",
    ),
    "digest-wins": (
        {"webhook.image.tag": "3", "webhook.image.digest": DIGEST, "global.imageTag": "4"},
        f"localhost/gpushare/webhook@{DIGEST}",
    ),
    "own-tag-wins": (
        {"webhook.image.tag": "3", "global.imageTag": "4"},
        "localhost/gpushare/webhook:3",
    ),
}


@pytest.mark.parametrize(("values", "image"), IMAGES.values(), ids=IMAGES)
def test_images_follow_registry_tag_and_digest(helm4: Helm, values: Json, image: str) -> None:
    assert container_of(webhook(helm4, values))["image"] == image


def test_all_pods_share_registry_secrets_and_labels(helm4: Helm) -> None:
    values = {
        "global.imageRegistry": "registry.example",
        "global.imagePullSecrets": ["first", {"name": "second"}],
        "global.labels": {"team": "ml"},
        "agent.mps.enabled": True,
    }
    documents = helm4.rendered(values)
    assert {document["metadata"]["labels"]["team"] for document in documents} == {"ml"}
    workloads = [document for document in documents if document["kind"] in {"Deployment", "DaemonSet"}]
    assert len(workloads) == 3
    for workload in workloads:
        assert container_of(workload)["image"].startswith("registry.example/gpushare/")
        assert pod_of(workload)["imagePullSecrets"] == [{"name": "first"}, {"name": "second"}]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert labels["team"] == "ml"
        assert labels.items() >= workload["spec"]["selector"]["matchLabels"].items()
        assert "team" not in workload["spec"]["selector"]["matchLabels"]


def test_our_labels_cannot_be_overridden(helm4: Helm) -> None:
    values = {"webhook.podLabels": {"app.kubernetes.io/component": "other", "a": "b"}}
    labels = webhook(helm4, values)["spec"]["template"]["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "webhook", "a": "b"}


@pytest.mark.parametrize(("component", "find"), [("webhook", webhook), ("agent", agent)])
def test_pods_follow_the_values(helm4: Helm, component: str, find: Any) -> None:
    wanted: Json = {
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "mine",
        "podAnnotations": {"note": "x"},
        "resources": {"requests": {"cpu": "2"}},
        "extraArgs": ["--log-level=debug"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "securityContext": {"privileged": True},
        "image.pullPolicy": "Always",
    }
    workload = find(helm4, {f"{component}.{key}": value for key, value in wanted.items()})
    pod, container = pod_of(workload), container_of(workload)
    for key in ("tolerations", "priorityClassName"):
        assert pod[key] == wanted[key]
    assert pod["nodeSelector"].items() >= {"pool": "a"}.items()
    assert pod["affinity"].items() >= {"podAntiAffinity": {}}.items()
    assert container["resources"]["requests"]["cpu"] == "2"
    assert workload["spec"]["template"]["metadata"]["annotations"] == {"note": "x"}
    assert container["args"][-1] == "--log-level=debug"
    assert container["env"][-1] == {"name": "A", "value": "b"}
    assert container["imagePullPolicy"] == "Always"
    assert container["securityContext"].items() >= {"privileged": True, "readOnlyRootFilesystem": True}.items()


def test_moves_are_scheduled_as_the_values_say(helm4: Helm) -> None:
    values = {"schedule": "30 3 * * *", "moves": 1_000_000, "extraArgs": ["--cpu-pods"], "image.digest": DIGEST}
    assert "at '/defrag/moves': maximum" in helm4.refused({f"defrag.{key}": value for key, value in values.items()})
    values["moves"] = 2000
    spec = defrag(helm4, {f"defrag.{key}": value for key, value in values.items()})
    container = container_of(spec["jobTemplate"])
    assert spec["schedule"] == "30 3 * * *"
    assert container["args"] == ["defrag", "--apply", "--moves=2000", "--cpu-pods"]
    assert container["image"] == f"localhost/gpushare/plugin@{DIGEST}"
    assert "gpushare-defrag" not in {manifest["metadata"]["name"] for manifest in helm4.rendered()}


def test_the_quota_covers_exactly_the_used_priority_classes(helm4: Helm) -> None:
    values = {"webhook.priorityClassName": ""}
    assert "priorityClassName" not in pod_of(webhook(helm4, values))
    quota = helm4.one("ResourceQuota", "gpushare-critical-pods", values)["spec"]
    assert quota["scopeSelector"]["matchExpressions"][0]["values"] == ["system-node-critical"]
    assert quota["hard"] == {"pods": "11000"}
    both = {"webhook.priorityClassName": "", "agent.priorityClassName": ""}
    assert "ResourceQuota" not in {manifest["kind"] for manifest in helm4.rendered(both)}


def test_the_daemons_accept_the_flags_of_all_values(helm4: Helm) -> None:
    values = {
        "webhook.policy": "spread",
        "webhook.defaultIsolation": "auto",
        "webhook.logLevel": "warning",
        "agent.logLevel": "debug",
        "agent.deviceListStrategy": "volume-mounts,cdi-cri",
        "agent.cdi.enabled": True,
        "agent.nvidiaDriverRoot": "/run/nvidia/driver",
        "config.existingConfigMap": "mine",
    }
    served = webhook_settings.parse(container_of(webhook(helm4, values))["args"], {})
    assert (served.policy, served.default_isolation, served.log_level) == ("spread", "auto", "warning")
    settings = agent_settings.parse(container_of(agent(helm4, values))["args"], {"NODE_NAME": "x"})
    assert settings.log_level == "debug"
    assert settings.config_map == f"{contract.SYSTEM_NAMESPACE}/mine"
    flags = {"--device-list-strategy=volume-mounts,cdi-cri", "--nvidia-driver-root=/run/nvidia/driver"}
    assert set(settings.options.arguments) == {"--fail-on-init-error=false", *flags}


def test_the_agent_may_read_a_custom_config_map(helm4: Helm) -> None:
    values = {"config.existingConfigMap": "mine"}
    (rule,) = helm4.one("Role", "gpushare-agent", values)["rules"]
    assert rule["resourceNames"] == ["mine"]
    maps = [manifest["metadata"]["name"] for manifest in helm4.rendered(values) if manifest["kind"] == "ConfigMap"]
    assert maps == [contract.PLACEMENT_CONFIG_MAP]


def test_only_declared_configurations_are_part_of_a_release(helm: Helm) -> None:
    maps = [manifest["metadata"]["name"] for manifest in helm.rendered() if manifest["kind"] == "ConfigMap"]
    assert maps == [contract.PLACEMENT_CONFIG_MAP]
    data = helm.one("ConfigMap", contract.CONFIG_MAP, {"config.data": {"mine": "version: v1\n"}})["data"]
    assert set(data) == {"default", "exclusive", "mine"}
    # Nodes without a label must not follow `mine`, the only declared entry.
    assert config_file.read(data["default"]) == config_file.read(config_choice.BUILT_IN.text)


def test_webhook_values_reach_its_configuration(helm4: Helm) -> None:
    more = {"key": "tier", "operator": "In", "values": ["system"]}
    values = {
        "webhook.failurePolicy": "Ignore",
        "webhook.timeoutSeconds": 5,
        "webhook.namespaceSelector.matchExpressions": [more],
    }
    hooks = helm4.one("MutatingWebhookConfiguration", contract.WEBHOOK_CONFIGURATION, values)["webhooks"]
    assert hooks[-1]["name"] == contract.WEBHOOK_NAME
    for hook in hooks:
        assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 5)
        own, added = hook["namespaceSelector"]["matchExpressions"]
        assert own["values"] == ["kube-system", contract.SYSTEM_NAMESPACE]
        assert added == more


def test_the_disruption_budget_can_be_disabled(helm4: Helm) -> None:
    kinds = {manifest["kind"] for manifest in helm4.rendered({"webhook.podDisruptionBudget.enabled": False})}
    assert "PodDisruptionBudget" not in kinds
    assert "Service" in kinds


def test_a_custom_issuer_signs_the_certificate(helm4: Helm) -> None:
    issuer = {"kind": "ClusterIssuer", "name": "company"}
    values = {"webhook.certManager": {"enabled": True, "issuerRef": issuer, "duration": "720h"}}
    made = [manifest for manifest in helm4.rendered(values) if manifest["apiVersion"].startswith("cert-manager.io/")]
    assert [(doc["kind"], doc["metadata"]["name"]) for doc in made] == [("Certificate", "gpushare-webhook")]
    assert made[0]["spec"]["issuerRef"] == issuer
    assert made[0]["spec"]["duration"] == "720h"


def sources(helm: Helm, name: str, values: Json) -> dict[str, list[Json] | None]:
    """Return the allowed sources by port; None allows all."""
    spec = helm.one("NetworkPolicy", name, values)["spec"]
    return {port["port"]: rule.get("from") for rule in spec["ingress"] for port in rule["ports"]}


def test_network_policies_follow_the_values(helm4: Helm) -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"team": "seen"}}}
    system = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    values: Json = {"networkPolicy.prometheusNamespace": {"kubernetes.io/metadata.name": None, "team": "seen"}}
    assert sources(helm4, "gpushare-webhook", values) == {"reviews": None, "probes": [prometheus]}

    pods = {**values, "networkPolicy.podCIDRs": ["10.244.0.0/16", "fd00::/8"]}
    assert sources(helm4, "gpushare-agent", pods)["probes"] == [
        prometheus,
        system,
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fd00::/8"]}},
    ]

    known = {**values, "networkPolicy.apiServerCIDRs": ["192.0.2.1/32"]}
    server = {"ipBlock": {"cidr": "192.0.2.1/32"}}
    assert sources(helm4, "gpushare-webhook", known) == {"reviews": [server], "probes": [prometheus]}
    assert sources(helm4, "gpushare-agent", known) == {"probes": [prometheus, system, server]}

    assert "NetworkPolicy" not in {manifest["kind"] for manifest in helm4.rendered({"networkPolicy.enabled": False})}


def test_the_notes_end_with_the_next_commands(helm4: Helm) -> None:
    notes = helm4.text("install", "gpushare", str(CHART), "--dry-run=client").partition("NOTES:")[2]
    assert notes.rstrip().endswith("kubectl gpushare top")
    assert "kubectl label namespace gpushare-system pod-security.kubernetes.io/enforce=privileged" in notes
