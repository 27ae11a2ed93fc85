"""install.sh, run as a user runs it, and what it installed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab import access, lab_errors
from tests.config import manifests

SYSTEM = "gpushare-system"


def install(
    *flags: str,
    path: str = "",
    kubeconfig: Path | None = None,
    more: dict[str, str] | None = None,
    cwd: Path = manifests.REPOSITORY,
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **access.KUBECTL_ENVIRONMENT,
        **(more or {}),
        "PATH": f"{path}{os.pathsep if path else ''}{os.environ['PATH']}",
        "KUBECONFIG": str(kubeconfig or "/nonexistent"),
    }
    command = [str(manifests.REPOSITORY / "install.sh"), *flags]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


_CLUSTER_WIDE = (
    "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "rbac.authorization.k8s.io/v1/clusterrolebindings",
    "rbac.authorization.k8s.io/v1/clusterroles",
)
_NAMESPACED = {
    "api/v1": "services configmaps secrets serviceaccounts",
    "apis/apps/v1": "deployments daemonsets",
    "apis/batch/v1": "cronjobs",
    "apis/networking.k8s.io/v1": "networkpolicies",
    "apis/policy/v1": "poddisruptionbudgets",
    "apis/rbac.authorization.k8s.io/v1": "rolebindings roles",
}
_LISTS = (
    *(f"/apis/{kind}" for kind in _CLUSTER_WIDE),
    *(f"/{group}/namespaces/{SYSTEM}/{kind}" for group, kinds in _NAMESPACED.items() for kind in kinds.split()),
)
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.gpushare.io"
_NAMESPACE = f"/api/v1/namespaces/{SYSTEM}"


def ours(own: access.Access) -> list[str]:
    """Return the API paths of all objects of gpushare except its ledger and its namespace."""
    names = {path: [item["metadata"]["name"] for item in own.read(path)["items"]] for path in _LISTS}
    return [f"{path}/{name}" for path in _LISTS for name in names[path] if "gpushare" in name]


def list_of(manifest: dict[str, Any]) -> str:
    """Return the API path of the list that an object belongs to."""
    group, namespace, kind = manifest["apiVersion"], manifest["metadata"].get("namespace"), manifest["kind"].lower()
    plural = kind[:-1] + "ies" if kind.endswith("y") else kind + ("es" if kind.endswith("s") else "s")
    return f"/{'apis' if '/' in group else 'api'}/{group}/{f'namespaces/{namespace}/' if namespace else ''}{plural}"


def apply(own: access.Access, documents: Iterable[dict[str, Any]]) -> None:
    """Create these objects, or change those that exist, without kubectl."""
    for document in documents:
        path = list_of(document)
        try:
            own.create(path, document)
        except lab_errors.LabError as error:
            if "AlreadyExists" not in str(error):
                raise
            own.patch(f"{path}/{document['metadata']['name']}", document)


def withdraw(own: access.Access, documents: Iterable[dict[str, Any]]) -> None:
    """Delete those of these objects that exist."""
    for document in documents:
        own.delete(f"{list_of(document)}/{document['metadata']['name']}")


def remove(own: access.Access) -> None:
    """Remove gpushare and its ledger through the API, which takes a tenth of the time of install.sh --uninstall."""
    for path in (*ours(own), CRD, _NAMESPACE):
        own.delete(path)
    deadline = time.monotonic() + 60
    while own.find(CRD) or own.find(_NAMESPACE):
        assert time.monotonic() < deadline, "the CRD and the namespace of gpushare are not gone after 60 s"
        time.sleep(0.05)


# A client-side apply that does not read all schemas, which takes kubectl 1.3 s.
APPLY = ("apply", "--validate=false", "--openapi-patch=false")
# No pod can run here because there is no kubelet, so do not wait long; install.sh then reports a failure.
QUICKLY = ("--skip-preflight", "--timeout=1")


def installed(done: subprocess.CompletedProcess[str]) -> None:
    """Run install.sh; it installs everything, then reports that no pod runs."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "error: gpushare is installed, but does not work yet, because of" in done.stderr, done.stderr
    assert "webhook-ready" in done.stderr
