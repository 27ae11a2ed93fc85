"""Prometheus finds webhook and agents by the configuration in docs/monitoring.md, with the labels that rules and
dashboards use.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import contract
from gpushare.object_parsers import read_yaml
from lab import access, unpacked
from tests.config import manifests
from tests.docs import pages
from tests.e2e.observation import eventually
from tests.monitoring import prometheus, rules

PAGE = "docs/monitoring.md"
BLOCKS = [yaml.safe_load(block.text) for block in pages.blocks() if block.page == PAGE and block.language == "yaml"]
OURS, OTHERS = (
    {scrape_config["job_name"]: scrape_config for scrape_config in block["scrape_configs"]} for block in BLOCKS
)
# Labels that Prometheus adds to a scrape, and that no metric has.
TARGETS = {
    "gpushare-webhook": {"job": "gpushare-webhook", "instance": "gpushare-webhook-abc"},
    "gpushare-agent": {"job": "gpushare-agent", "instance": "gpu-1", "node": "gpu-1"},
}


@pytest.mark.slow
def test_promtool_accepts_the_manuals_configuration(tmp_path: Path) -> None:
    for number, scrapes in enumerate((OURS, OTHERS)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump({"scrape_configs": [finding(scrape, []) for scrape in scrapes.values()]}))
        command = [unpacked.program("promtool"), "check", "config", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert OTHERS["opencost"]["metric_relabel_configs"][0]["regex"] == "container_gpu_allocation"


def finding(scrape: dict[str, Any], targets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the configuration with static targets: Debian builds Prometheus without Kubernetes service discovery."""
    (discovery,) = scrape.get(
        "kubernetes_sd_configs", [{"role": "pod", "namespaces": {"names": [contract.SYSTEM_NAMESPACE]}}]
    )
    assert discovery == {"role": "pod", "namespaces": {"names": [contract.SYSTEM_NAMESPACE]}}
    rest = {key: value for key, value in scrape.items() if not key.endswith("_sd_configs")}
    return {**rest, "static_configs": [*rest.get("static_configs", ()), *targets]}


def test_all_jobs_in_expressions_are_scraped() -> None:
    asked = set(re.findall(r'job="([^"]+)"', rules.FILE.read_text()))
    assert asked == set(OURS) == set(TARGETS)


def workload(kind: str, name: str) -> dict[str, Any]:
    return manifests.named(kind, name)["spec"]["template"]  # type: ignore[no-any-return]


def discovered() -> list[dict[str, Any]]:
    """Return what service discovery finds for a pod of each workload: a target per port, with its metadata labels."""
    targets = []
    for kind, name, node, address in (
        ("Deployment", "gpushare-webhook", "cpu-1", "127.0.0.2"),
        ("DaemonSet", "gpushare-agent", "gpu-1", "127.0.0.3"),
    ):
        template = workload(kind, name)
        labels = {
            "__meta_kubernetes_namespace": contract.SYSTEM_NAMESPACE,
            "__meta_kubernetes_pod_name": f"{name}-abc",
            "__meta_kubernetes_pod_node_name": node,
        }
        labels |= {
            f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', key)}": value
            for key, value in template["metadata"]["labels"].items()
        }
        for container in template["spec"]["containers"]:
            for port in container["ports"]:
                own = {
                    "__meta_kubernetes_pod_container_name": container["name"],
                    "__meta_kubernetes_pod_container_port_name": port["name"],
                }
                targets.append({"targets": [f"{address}:{port['containerPort']}"], "labels": {**labels, **own}})
    return targets


@pytest.mark.slow
def test_scraped_pods_get_the_labels_of_rules_and_dashboards(tmp_path: Path) -> None:
    assert len(discovered()) == 3
    with prometheus.running(tmp_path, [finding(our, discovered()) for our in OURS.values()]) as seen:
        targets = eventually(
            lambda: answer if len(answer := seen.get("targets", state="active")["activeTargets"]) >= 2 else None,
            what="both taken",
        )
    assert {target["labels"]["job"]: target["labels"] for target in targets} == TARGETS
    # The ports for probes, without the webhook's port for reviews.
    assert {target["scrapeUrl"] for target in targets} == {
        "http://127.0.0.2:8081/metrics",
        "http://127.0.0.3:8081/metrics",
    }


def snake(relabeling: dict[str, Any]) -> dict[str, Any]:
    """Convert the operator's relabeling to Prometheus' spelling."""
    return {re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", key): value for key, value in relabeling.items()}


@pytest.mark.parametrize(
    ("file", "job", "dropped"),
    [
        ("servicemonitor.yaml", "gpushare-webhook", {"namespace", "pod", "container", "endpoint", "service"}),
        ("podmonitor.yaml", "gpushare-agent", {"namespace", "pod", "container", "endpoint"}),
    ],
)
def test_the_monitors_have_the_same_relabeling(file: str, job: str, dropped: set[str]) -> None:
    (monitor,) = [
        document
        for document in manifests.documents(rules.FOLDER / file)
        if document["kind"] in {"ServiceMonitor", "PodMonitor"}
    ]
    spec = monitor["spec"]
    (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is OURS[job]["honor_labels"] is True
    assert endpoint["path"] == "/metrics"
    first, *middle, last = map(snake, endpoint["relabelings"])
    assert first == {"target_label": "job", "replacement": job}
    assert middle == [
        relabel_config for relabel_config in OURS[job]["relabel_configs"] if relabel_config.get("action") != "keep"
    ]
    # Labels that the operator adds, and that would hide labels of metrics.
    assert last == {"action": "labeldrop", "regex": "|".join(sorted(dropped, key=last["regex"].index))}


@pytest.mark.slow
def test_the_monitors_select_existing_workloads() -> None:
    service, webhooks = manifests.documents(rules.FOLDER / "servicemonitor.yaml")
    (agents,) = manifests.documents(rules.FOLDER / "podmonitor.yaml")
    assert webhooks["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert webhooks["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    # The Service for reviews is separate and has no such port.
    reviews = manifests.named("Service", "gpushare-webhook")
    assert not webhooks["spec"]["selector"]["matchLabels"].items() <= reviews["metadata"]["labels"].items()
    for selector, kind, name in (
        (service["spec"]["selector"], "Deployment", "gpushare-webhook"),
        (agents["spec"]["selector"]["matchLabels"], "DaemonSet", "gpushare-agent"),
    ):
        template = workload(kind, name)
        assert selector.items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
        assert "probes" in ports


@pytest.mark.apiserver
def test_kustomize_renders_every_monitoring_object(api_server: access.Access, tmp_path: Path) -> None:
    default, component = (os.path.relpath(path, tmp_path) for path in (manifests.CONFIG / "default", rules.FOLDER))
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [default], "components": [component]}))
    made = [*read_yaml(api_server.kubectl("kustomize", str(tmp_path)))]
    kinds = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in made}
    assert {
        *(("ServiceMonitor", "gpushare-webhook"), ("PodMonitor", "gpushare-agent"), ("PrometheusRule", "gpushare")),
        *(("Service", "gpushare-webhook-metrics"), ("ConfigMap", "gpushare-dashboards")),
    } <= kinds
    (dashboards,) = (manifest for manifest in made if manifest["metadata"]["name"] == "gpushare-dashboards")
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert all(json.loads(text)["panels"] for text in dashboards["data"].values())
    assert len(dashboards["data"]) == 4
