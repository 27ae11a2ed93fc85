"""Releases on a real API server: Helm 3 and 4 install, upgrade and uninstall; the server knows every field sent."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare import contract
from lab import access, build, cluster
from tests.chart.conftest import CHART, RELEASE, Helm
from tests.chart.test_same_objects import SWITCHES, TOGETHER, kustomized
from tests.config import installation
from webhook.certificates import rotation
from webhook.certificates.rotation import RotationStep

pytestmark = pytest.mark.apiserver

Json = dict[str, Any]
NAMESPACE = contract.SYSTEM_NAMESPACE
ALL_SWITCHES = {key: value for name in TOGETHER for key, value in SWITCHES[name].items()}
# Kinds of other projects, which the lab's API servers do not know.
FOREIGN = {"Certificate", "Issuer", "PodMonitor", "PrometheusRule", "SecurityContextConstraints", "ServiceMonitor"}


@pytest.fixture(scope="module")
def own() -> Iterator[access.Access]:
    """A separate API server: Helm refuses to adopt objects that other tests applied to a shared one."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            yield cluster.up(directory, node_count=0, owner=os.getpid())
        finally:
            cluster.down(directory)


@pytest.fixture(scope="module")
def bundle() -> str:
    """Return a caBundle that the API server accepts."""
    held = rotation.apply_step(RotationStep.START, None, ("localhost",), now=datetime.datetime.now(datetime.UTC))
    return base64.b64encode(held.bundle.encode()).decode()


@pytest.fixture
def here(helm: Helm, own: access.Access) -> Helm:
    return dataclasses.replace(helm, kubeconfig=own.kubeconfig)


# A schema of all kinds, which Helm reads before each change unless told otherwise, costs it more than the change itself.
# test_every_object_is_valid_in_this_kubernetes compares the objects with it.
UNREAD = "--disable-openapi-validation"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/gpushare-webhook"
KEEPER = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/gpushare-mps"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{contract.CERTIFICATE_SECRET}"
CONFIGURATIONS = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{contract.CONFIG_MAP}"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpushare"
QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"


def chart_of(folder: Path, *templates: str) -> str:
    """Copy the chart with only these of its templates."""
    shutil.copytree(CHART, folder)
    for path in (folder / "templates").glob("*.yaml"):
        if path.name not in templates:
            path.unlink()
    return str(folder)


def ours(own: access.Access) -> list[str]:
    """Return the paths of gpushare's objects, without the additions of Helm and Kubernetes."""
    named = [path for path in installation.ours(own) if path.rpartition("/")[2].startswith("gpushare")]
    quotas = [f"{QUOTAS}/{item['metadata']['name']}" for item in own.read(QUOTAS)["items"]]
    return [*named, *quotas, *([installation.CRD] if own.find(installation.CRD) else [])]


@pytest.mark.timeout(600)  # a dozen Helm commands, on a busy machine
def test_a_release_is_installed_upgraded_and_uninstalled(
    here: Helm, own: access.Access, bundle: str, tmp_path: Path
) -> None:
    flags = (RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--create-namespace")
    checked = here.text("install", *flags, "--dry-run=server")
    assert "name: gpushare-agent" in checked

    here.text("install", *flags)
    rendered = here.rendered()
    # Every rendered object exists, under the name that kustomize gives it.
    assert len(ours(own)) == len(rendered)
    assert own.read(DEPLOYMENT)["spec"]["replicas"] == 2

    # Objects that the webhook writes, and the ledger.
    hooks = own.read(HOOKS)["webhooks"]
    trusted = [
        {"op": "add", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": bundle} for at in range(len(hooks))
    ]
    own.patch(HOOKS, trusted)
    own.patch(SECRET, {"stringData": {"ca.key": "x"}})
    node = {"apiVersion": "gpushare.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": "node-a"}, "spec": {}}
    own.create(contract.GPUNODE_PATH, node)

    here.text("upgrade", *flags, UNREAD, "--set=webhook.replicas=3", "--set=agent.mps.enabled=true")
    assert own.read(DEPLOYMENT)["spec"]["replicas"] == 3
    assert own.read(KEEPER)["metadata"]["labels"]["app.kubernetes.io/component"] == "mps"
    hooks = own.read(HOOKS)["webhooks"]
    assert {hook["clientConfig"]["caBundle"] for hook in hooks} == {bundle}
    assert own.read(SECRET)["data"]["ca.key"]

    here.text("rollback", RELEASE, "1", f"--namespace={NAMESPACE}")
    assert own.read(DEPLOYMENT)["spec"]["replicas"] == 2
    assert own.find(KEEPER) is None

    here.text("uninstall", RELEASE, f"--namespace={NAMESPACE}")
    assert ours(own) == [installation.CRD]
    assert own.find(f"{contract.GPUNODE_PATH}/node-a")

    # The ledger of the previous release is adopted again.
    here.text("install", RELEASE, chart_of(tmp_path / "gpushare", "crds.yaml"), f"--namespace={NAMESPACE}", UNREAD)
    assert own.find(f"{contract.GPUNODE_PATH}/node-a")
    here.text("uninstall", RELEASE, f"--namespace={NAMESPACE}")


# The template of version 0.2.0, whose values had the entries default and exclusive.
CONFIGURATIONS_OF_0_2_0 = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: gpushare-config
  namespace: gpushare-system
  labels: {app.kubernetes.io/part-of: gpushare}
data:
  default: |
    version: v1
    sharing:
      fractional:
        resources:
        - name: nvidia.com/gpu
  exclusive: |
    version: v1
"""


def entries(own: access.Access) -> dict[str, str]:
    data: dict[str, str] = own.read(CONFIGURATIONS)["data"]
    return data


def edit(own: access.Access, **changed: str) -> None:
    own.patch(f"{CONFIGURATIONS}?fieldManager=kubectl-edit", {"data": changed})


@pytest.mark.timeout(600)
def test_an_upgrade_keeps_edited_configurations(here: Helm, own: access.Access, tmp_path: Path) -> None:
    chart = chart_of(tmp_path / "now", "configurations.yaml")  # no other template reads or writes them
    before = chart_of(tmp_path / "before", "configurations.yaml")
    (tmp_path / "before" / "templates" / "configurations.yaml").write_text(CONFIGURATIONS_OF_0_2_0)
    scope = (f"--namespace={NAMESPACE}", "--create-namespace", UNREAD)
    upgrade = ("upgrade", RELEASE, chart, *scope)
    here.text("install", RELEASE, before, *scope)
    untouched = entries(own)
    here.text(*upgrade)
    assert entries(own) == untouched

    edit(own, default="version: v1\n", mine="version: v1\n")
    edited = entries(own)
    for _ in range(2):
        here.text(*upgrade)
        assert entries(own) == edited

    # Values that would revert an edited entry are rejected; values that agree with it are accepted.
    refused = here.run(*upgrade, '--set-json=config.data={"mine": "version: v1\\n"}')
    assert "the entry default of the ConfigMap gpushare-config differs from what this release wrote" in refused.stderr
    assert "to config.data.default" in refused.stderr
    assert entries(own) == edited
    declared = f"--set-json=config.data={json.dumps(edited)}"
    here.text(*upgrade, declared)
    here.text(*upgrade, declared.replace("mine", "more"))
    assert entries(own)["more"] == edited["mine"]
    edit(own, more="version: v1\nsharing: {}\n")
    assert here.run(*upgrade, declared.replace("mine", "more")).returncode != 0

    # Values without entries leave the ConfigMap to the administrator, even if the release is removed and installed
    # again.
    here.text(*upgrade, "--reset-values")
    left = entries(own)
    assert left["more"] == "version: v1\nsharing: {}\n"
    here.text("uninstall", RELEASE, f"--namespace={NAMESPACE}")
    assert entries(own) == left
    here.text("install", RELEASE, chart, *scope)
    assert entries(own) == left
    here.text("uninstall", RELEASE, f"--namespace={NAMESPACE}")
    own.delete(CONFIGURATIONS)


@pytest.mark.timeout(600)
def test_helm_adopts_an_installation_applied_with_kubectl(here: Helm, own: access.Access) -> None:
    own.delete(installation.CRD)
    own.kubectl("apply", "--server-side", f"--kustomize={CHART.parents[1] / 'config' / 'default'}")
    metadata = {"name": contract.CONFIG_MAP}
    own.create(CONFIGURATIONS.rpartition("/")[0], {"metadata": metadata, "data": {"mine": "version: v1"}})
    uid = own.read(DEPLOYMENT)["metadata"]["uid"]
    flags = (RELEASE, str(CHART), f"--namespace={NAMESPACE}", UNREAD)
    assert "invalid ownership metadata" in here.run("install", *flags).stderr
    # Helm 4 uses server-side apply, where kubectl owns these fields.
    force = ("--force-conflicts",) if here.text("version", "--short").startswith("v4") else ()
    here.text("install", *flags, "--take-ownership", *force)
    assert own.read(DEPLOYMENT)["metadata"]["uid"] == uid
    assert entries(own) == {"mine": "version: v1"}
    here.text("upgrade", *flags)
    here.text("uninstall", RELEASE, f"--namespace={NAMESPACE}")
    own.delete(CONFIGURATIONS)


@pytest.fixture(scope="module")
def schemas(own: access.Access, helm4: Helm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write JSON schemas of the chart's kinds, from the API server's OpenAPI, where kubeconform looks for them."""
    directory = tmp_path_factory.mktemp("schemas")
    kinds: dict[str, set[str]] = {}
    for manifest in (*helm4.rendered({"createNamespace": True}), *helm4.rendered(ALL_SWITCHES)):
        if manifest["kind"] not in FOREIGN:
            kinds.setdefault(manifest["apiVersion"], set()).add(manifest["kind"])
    paths = own.read("/openapi/v3")["paths"]
    for version, wanted in kinds.items():
        where = paths[f"apis/{version}" if "/" in version else f"api/{version}"]["serverRelativeURL"]
        components = own.read(where)["components"]
        for schema in components["schemas"].values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        for key, schema in components["schemas"].items():
            for kind in schema.get("x-kubernetes-group-version-kind", []):
                if kind["kind"] not in wanted or f"{kind['group']}/{kind['version']}".lstrip("/") != version:
                    continue
                suffix = f"-{kind['group'].split('.')[0]}" if kind["group"] else ""
                file = directory / f"{kind['kind'].lower()}{suffix}-{kind['version']}.json"
                file.write_text(json.dumps({"$ref": f"#/components/schemas/{key}", "components": components}))
    return directory


def conform(schemas: Path, documents: list[Json]) -> subprocess.CompletedProcess[str]:
    location = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [str(build.tool("kubeconform")), "-strict", "-summary", "-schema-location", location]
    command += ["-skip", ",".join(sorted(FOREIGN)), "-kubernetes-version", build.version().removeprefix("v"), "-"]
    text = yaml.safe_dump_all(documents)
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=240, check=False)


def test_every_object_is_valid_in_this_kubernetes(schemas: Path, helm4: Helm, tmp_path: Path) -> None:
    for documents in (helm4.rendered({"createNamespace": True}), helm4.rendered(ALL_SWITCHES)):
        done = conform(schemas, documents)
        assert done.returncode == 0, done.stdout
        foreign = len([document for document in documents if document["kind"] in FOREIGN])
        assert f"Valid: {len(documents) - foreign}, Invalid: 0, Errors: 0, Skipped: {foreign}" in done.stdout
    assert conform(schemas, list(kustomized(tmp_path).values())).returncode == 0


def test_an_unknown_field_is_reported(schemas: Path, helm4: Helm) -> None:
    workload = helm4.one("DaemonSet", "gpushare-agent")
    workload["spec"]["template"]["spec"]["hostPids"] = True
    done = conform(schemas, [workload])
    assert done.returncode == 1
    assert "additional properties 'hostPids' not allowed" in done.stdout


def test_helm_lint_reports_nothing(helm: Helm) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm.text("lint", "--strict", str(CHART))
