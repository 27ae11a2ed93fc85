"""The chart as Helm 3 and Helm 4 render it. Helm is built like the lab's Kubernetes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushare.object_parsers import read_yaml
from lab import build
from lab.access import KUBECTL_ENVIRONMENT

Json = dict[str, Any]
CHART = Path(__file__).resolve().parents[2] / "charts" / "gpushare"
RELEASE = "gpushare"
# Helm adds these, and kustomize does not.
OF_HELM = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
}


@dataclasses.dataclass(frozen=True)
class Helm:
    """One version of Helm, and the cluster it uses, if any."""

    program: Path
    kubeconfig: Path = Path("/nonexistent")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), *arguments, f"--kubeconfig={self.kubeconfig}"]
        environment = {**os.environ, **KUBECTL_ENVIRONMENT}
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)

    def text(self, *arguments: str) -> str:
        """Return the output of a command that must succeed."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, values: Json | None = None, *flags: str) -> str:
        """Return the error message for values that must be rejected."""
        done = self._template(values or {}, *flags)
        assert done.returncode != 0, "they were taken"
        return done.stderr

    def rendered(self, values: Json | None = None, *flags: str) -> list[Json]:
        """Return the objects of the chart with these values."""
        done = self._template(values or {}, *flags)
        assert done.returncode == 0, done.stderr
        return [document for document in read_yaml(done.stdout) if document]

    def one(self, kind: str, name: str, values: Json | None = None) -> Json:
        """Return the object of that kind and name."""
        (manifest,) = [doc for doc in self.rendered(values) if (doc["kind"], doc["metadata"]["name"]) == (kind, name)]
        return manifest

    def _template(self, values: Json, *flags: str) -> subprocess.CompletedProcess[str]:
        set_flags = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
        return self.run("template", RELEASE, str(CHART), *set_flags, *flags)


def comparable(documents: list[Json]) -> dict[tuple[str, str], Json]:
    """Return the objects by kind and name, without Helm's additions and with folded lines as they were written."""
    manifests = {}
    for document in documents:
        manifest = _folded(document)
        labels = manifest["metadata"].get("labels", {})
        manifest["metadata"]["labels"] = {key: value for key, value in labels.items() if key not in OF_HELM}
        manifests[(manifest["kind"], manifest["metadata"]["name"])] = manifest
    assert len(manifests) == len(documents)
    return manifests


def _folded(value: Any) -> Any:
    """Undo kustomize's doubling of line breaks in folded text, which CEL ignores."""
    if isinstance(value, dict):
        return {key: _folded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_folded(inner) for inner in value]
    return re.sub(r"\n+", "\n", value) if isinstance(value, str) else value


@pytest.fixture(scope="session", params=["helm3", "helm4"])
def helm(request: pytest.FixtureRequest) -> Helm:
    """Each version of Helm in turn."""
    return Helm(build.tool(request.param))


@pytest.fixture(scope="session")
def helm4() -> Helm:
    """One version, for tests in which both do the same."""
    return Helm(build.tool("helm4"))
