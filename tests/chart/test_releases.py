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


def got(own: access.Access, kind: str, name: str) -> Json:
    manifest: Json = json.loads(own.kubectl("get", kind, name, f"--namespace={NAMESPACE}", "--output=json"))
    return manifest


def ours(own: access.Access) -> set[str]:
    """Return gpushare's objects without Kubernetes' additions."""
    wide = "crd,validatingadmissionpolicy,validatingadmissionpolicybinding,mutatingwebhookconfiguration,clusterrole"
    home = "deploy,ds,secret,sa,role,rolebinding,cm,netpol,pdb,svc,resourcequota"
    lists = [
        own.kubectl("get", f"{wide},clusterrolebinding", "--output=name"),
        own.kubectl("get", home, f"--namespace={NAMESPACE}", "--output=name"),
    ]
    return {name for text in lists for name in text.split() if "/gpu" in name}


@pytest.mark.timeout(600)  # a dozen Helm commands, on a busy machine
def test_a_release_is_installed_upgraded_and_uninstalled(here: Helm, own: access.Access, bundle: str) -> None:
    flags = (RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--create-namespace")
    checked = here.text("install", *flags, "--dry-run=server")
    assert "name: gpushare-agent" in checked

    here.text("install", *flags)
    rendered = here.rendered()
    # Every rendered object exists, under the name that kustomize gives it.
    assert len(ours(own)) == len(rendered)
    assert got(own, "deployment", "gpushare-webhook")["spec"]["replicas"] == 2

    # Objects that the webhook writes, and the ledger.
    hooks = got(own, "mutatingwebhookconfiguration", "gpushare")["webhooks"]
    trusted = [
        {"op": "add", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": bundle} for at in range(len(hooks))
    ]
    own.kubectl("patch", "mutatingwebhookconfiguration", "gpushare", "--type=json", f"--patch={json.dumps(trusted)}")
    own.kubectl(
        "patch",
        "secret",
        contract.CERTIFICATE_SECRET,
        f"--namespace={NAMESPACE}",
        '--patch={"stringData":{"ca.key":"x"}}',
    )
    node = {"apiVersion": "gpushare.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": "node-a"}, "spec": {}}
    own.kubectl("apply", "--filename=-", input=json.dumps(node))

    here.text("upgrade", *flags, "--set=webhook.replicas=3", "--set=agent.mps.enabled=true")
    assert got(own, "deployment", "gpushare-webhook")["spec"]["replicas"] == 3
    assert got(own, "daemonset", "gpushare-mps")["metadata"]["labels"]["app.kubernetes.io/component"] == "mps"
    hooks = got(own, "mutatingwebhookconfiguration", "gpushare")["webhooks"]
    assert {hook["clientConfig"]["caBundle"] for hook in hooks} == {bundle}
    assert got(own, "secret", contract.CERTIFICATE_SECRET)["data"]["ca.key"]

    here.text("rollback", RELEASE, "1", f"--namespace={NAMESPACE}")
    assert got(own, "deployment", "gpushare-webhook")["spec"]["replicas"] == 2
    assert "daemonset.apps/gpushare-mps" not in ours(own)

    here.text("uninstall", RELEASE, f"--namespace={NAMESPACE}")
    assert ours(own) == {"customresourcedefinition.apiextensions.k8s.io/gpunodes.gpushare.io"}
    assert got(own, "gpunode", "node-a")

    # The ledger of the previous release is adopted again.
    here.text("install", *flags)
    assert got(own, "gpunode", "node-a")
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
    data: dict[str, str] = got(own, "configmap", contract.CONFIG_MAP)["data"]
    return data


def edit(own: access.Access, **changed: str) -> None:
    patch = json.dumps({"data": changed})
    scope = (f"--namespace={NAMESPACE}", "--field-manager=kubectl-edit")
    own.kubectl("patch", "configmap", contract.CONFIG_MAP, f"--patch={patch}", *scope)


@pytest.mark.timeout(600)
def test_an_upgrade_keeps_edited_configurations(here: Helm, own: access.Access, tmp_path: Path) -> None:
    before = tmp_path / "gpushare"
    shutil.copytree(CHART, before)
    (before / "templates" / "configurations.yaml").write_text(CONFIGURATIONS_OF_0_2_0)
    scope = (f"--namespace={NAMESPACE}", "--create-namespace")
    upgrade = ("upgrade", RELEASE, str(CHART), *scope)
    here.text("install", RELEASE, str(before), *scope)
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
    here.text("install", RELEASE, str(CHART), *scope)
    assert entries(own) == left
    here.text("uninstall", RELEASE, f"--namespace={NAMESPACE}")
    own.kubectl("delete", "configmap", contract.CONFIG_MAP, f"--namespace={NAMESPACE}")


@pytest.mark.timeout(600)
def test_helm_adopts_an_installation_applied_with_kubectl(here: Helm, own: access.Access) -> None:
    own.kubectl("delete", "crd", contract.GPUNODE_PLURAL + "." + contract.GROUP_NAME, "--ignore-not-found")
    own.kubectl("apply", "--server-side", f"--kustomize={CHART.parents[1] / 'config' / 'default'}")
    own.kubectl(
        "create", "configmap", contract.CONFIG_MAP, f"--namespace={NAMESPACE}", "--from-literal=mine=version: v1"
    )
    uid = got(own, "deployment", "gpushare-webhook")["metadata"]["uid"]
    flags = (RELEASE, str(CHART), f"--namespace={NAMESPACE}")
    assert "invalid ownership metadata" in here.run("install", *flags).stderr
    # Helm 4 uses server-side apply, where kubectl owns these fields.
    force = ("--force-conflicts",) if here.text("version", "--short").startswith("v4") else ()
    here.text("install", *flags, "--take-ownership", *force)
    assert got(own, "deployment", "gpushare-webhook")["metadata"]["uid"] == uid
    assert entries(own) == {"mine": "version: v1"}
    here.text("upgrade", *flags)
    here.text("uninstall", RELEASE, f"--namespace={NAMESPACE}")
    own.kubectl("delete", "configmap", contract.CONFIG_MAP, f"--namespace={NAMESPACE}")


@pytest.fixture(scope="module")
def schemas(own: access.Access, helm4: Helm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write JSON schemas of the chart's kinds, from the API server's OpenAPI, where kubeconform looks for them."""
    directory = tmp_path_factory.mktemp("schemas")
    versions = {manifest["apiVersion"] for manifest in helm4.rendered(ALL_SWITCHES) if manifest["kind"] not in FOREIGN}
    paths = json.loads(own.kubectl("get", "--raw=/openapi/v3"))["paths"]
    for version in versions:
        where = paths[f"apis/{version}" if "/" in version else f"api/{version}"]["serverRelativeURL"]
        components = json.loads(own.kubectl("get", f"--raw={where}"))["components"]
        for schema in components["schemas"].values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        for key, schema in components["schemas"].items():
            for kind in schema.get("x-kubernetes-group-version-kind", []):
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
