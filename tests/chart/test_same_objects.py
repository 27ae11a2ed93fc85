"""The chart and config/ give the same installation, object by object; each switch equals its component."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import contract
from gpushare.object_parsers import read_yaml
from lab import access, build
from tests.chart.conftest import Helm, comparable
from tests.config import manifests
from webhook.controllers.demand.gang_demand import ATOMIC

pytestmark = pytest.mark.apiserver  # for Helm, which is built like the server; no server runs

Json = dict[str, Any]
RUNTIME_CLASS = {"agent.runtimeClassName": "nvidia"}
DRIVER_ROOT = {"agent.cdi.enabled": True, "agent.nvidiaDriverRoot": "/run/nvidia/driver"}
MICROK8S = {"agent.kubeletRootDir": "/var/snap/microk8s/common/var/lib/kubelet"}
AGENT_NODES = "agent.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
OPT_IN = {AGENT_NODES: [{"matchExpressions": [{"key": contract.NODE_CONFIG_LABEL, "operator": "Exists"}]}]}
MONITORING = {
    f"monitoring.{part}.enabled": True for part in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards")
}
# In the order that kustomize requires.
SWITCHES: dict[str, Json] = {
    "openshift": {"openshift.enabled": True},
    "cert-manager": {"webhook.certManager.enabled": True},
    "client-ca": {"webhook.clientCA.enabled": True},
    "cdi": {"agent.cdi.enabled": True},
    "driver-root": DRIVER_ROOT,
    "mig": {"agent.mig.enabled": True},
    "mps": {"agent.mps.enabled": True},
    "end-unlimited": {"agent.endUnlimited": True},
    "deny-unregistered": {"agent.denyUnregistered": True},
    "driver-memory": {"agent.driverMemory": True},
    "microk8s": MICROK8S,
    "runtime-class": RUNTIME_CLASS,
    "opt-in": OPT_IN,
    "defrag": {"defrag.enabled": True},
    "borrow": {"borrow.enabled": True},
    "preemption": {"preemption.enabled": True},
    "demand": {"demand.enabled": True},
    "demand-gangs": {"demand.enabled": True, "demand.provisioningClass": ATOMIC},
    "monitoring": MONITORING,
}
NEEDS = {"demand-gangs": "demand"}  # another component
TOGETHER = [name for name in SWITCHES if name != "cdi"]  # driver-root replaces it


def kustomized(directory: Path, *components: str) -> dict[tuple[str, str], Json]:
    """Return what `kubectl apply -k` would apply: config/default with components."""

    def relative(path: Path) -> str:
        return os.path.relpath(path, directory.resolve())

    wanted = {
        "resources": [relative(manifests.CONFIG / "default")],
        "components": [relative(manifests.CONFIG / "components" / name) for name in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    text = build_kustomization(directory)
    return comparable([document for document in read_yaml(text) if document])


def build_kustomization(directory: Path) -> str:
    command = [str(build.kubectl()), "kustomize", str(directory)]
    environment = {**os.environ, **access.KUBECTL_ENVIRONMENT}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout


WITHOUT_HELMS_OWN: Json = {"createNamespace": True, "crds.keep": False}


@pytest.fixture(scope="module")
def whole(helm4: Helm) -> dict[tuple[str, str], Json]:
    """Return what the chart renders by default, with the namespace."""
    return comparable(helm4.rendered(WITHOUT_HELMS_OWN))


def test_the_charts_defaults_equal_the_default_installation(helm: Helm, tmp_path: Path) -> None:
    assert comparable(helm.rendered(WITHOUT_HELMS_OWN)) == kustomized(tmp_path)


def test_the_default_chart_omits_the_namespace_and_keeps_the_crd(
    helm4: Helm, whole: dict[tuple[str, str], Json]
) -> None:
    default = comparable(helm4.rendered())
    assert set(whole) - set(default) == {("Namespace", "gpushare-system")}
    crd = default.pop(("CustomResourceDefinition", "gpunodes.gpushare.io"))
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert {**default, ("CustomResourceDefinition", "gpunodes.gpushare.io"): crd} == {
        key: manifest for key, manifest in whole.items() if key[0] != "Namespace"
    }


@pytest.mark.parametrize("component", SWITCHES)
def test_each_switch_equals_its_component(
    helm4: Helm, whole: dict[tuple[str, str], Json], tmp_path: Path, component: str
) -> None:
    rendered = comparable(helm4.rendered({**WITHOUT_HELMS_OWN, **SWITCHES[component]}))
    assert rendered == kustomized(tmp_path, *filter(None, (NEEDS.get(component), component)))
    assert rendered != whole


def sorted_arguments(objects: dict[tuple[str, str], Json]) -> dict[tuple[str, str], Json]:
    """Sort flags; values of repeated flags keep their order, after the others."""
    for manifest in objects.values():
        if manifest["kind"] in {"DaemonSet", "Deployment"}:
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            container["args"].sort()
    return objects


def test_all_switches_together_equal_all_components(helm4: Helm, tmp_path: Path) -> None:
    values = {key: value for name in TOGETHER for key, value in SWITCHES[name].items()}
    rendered = sorted_arguments(comparable(helm4.rendered({**WITHOUT_HELMS_OWN, **values})))
    assert rendered == sorted_arguments(kustomized(tmp_path, *TOGETHER))


def test_every_component_has_a_switch_or_value() -> None:
    components = {path.parent.name for path in (manifests.CONFIG / "components").glob("*/kustomization.yaml")}
    assert components == set(SWITCHES)


def test_rendering_twice_gives_the_same_text(helm: Helm) -> None:
    arguments = (
        "template",
        "gpushare",
        str(manifests.REPOSITORY / "charts" / "gpushare"),
        "--set=agent.mps.enabled=true",
    )
    assert helm.text(*arguments) == helm.text(*arguments)


def test_the_release_namespace_has_no_effect(helm4: Helm) -> None:
    assert helm4.rendered({}, "--namespace=elsewhere") == helm4.rendered()
    assert {doc["metadata"].get("namespace", "gpushare-system") for doc in helm4.rendered()} == {"gpushare-system"}
