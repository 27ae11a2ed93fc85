"""The Prometheus operator's CRDs accept the component's objects, on a real API server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from gpushare import contract
from lab import access, lab_errors
from tests.config import manifests
from tests.monitoring import rules

pytestmark = pytest.mark.apiserver

OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.79.2"
KINDS = ("podmonitors", "prometheusrules", "servicemonitors")


@pytest.fixture(scope="module")
def operators(api_server: access.Access, tmp_path_factory: pytest.TempPathFactory) -> access.Access:
    """An API server with the operator's CRDs. Go's module cache keeps them by version."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    command = [go, "mod", "download", "-json", OPERATOR]
    done = subprocess.run(
        command, cwd=tmp_path_factory.mktemp("go"), capture_output=True, text=True, timeout=240, check=True
    )
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    for kind in KINDS:
        path = folder / f"monitoring.coreos.com_{kind}.yaml"
        api_server.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={path}")
        api_server.wait_until_established(f"{kind}.monitoring.coreos.com")
    namespace = manifests.CONFIG / "base" / "namespace"
    api_server.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(namespace))
    return api_server


def take(cluster: access.Access, text: str) -> str:
    return cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-", input=text
    )


@pytest.mark.parametrize("file", ["servicemonitor.yaml", "podmonitor.yaml", "prometheusrule.yaml"])
def test_the_operators_crds_accept_each_object(operators: access.Access, file: str) -> None:
    objects = manifests.documents(rules.FOLDER / file)
    assert take(operators, (rules.FOLDER / file).read_text()).count("serverside-applied") == len(objects)
    assert {manifest["metadata"]["namespace"] for manifest in objects} == {contract.SYSTEM_NAMESPACE}


def test_the_operators_crds_reject_an_object_with_a_typo(operators: access.Access) -> None:
    (monitor,) = manifests.documents(rules.FOLDER / "podmonitor.yaml")
    monitor["spec"]["podMetricsEndpoints"][0]["honorLabel"] = True
    with pytest.raises(lab_errors.LabError, match="honorLabel"):
        take(operators, yaml.safe_dump(monitor))
