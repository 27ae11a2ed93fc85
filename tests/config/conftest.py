"""gpushare's manifests on a real API server that enforces them without gpushare's programs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract
from lab import access, cluster, lab_errors
from tests.config import manifests
from tests.config.installation import SYSTEM, apply, install, remove, withdraw

WAIT_SECONDS = 30.0
USER = "gpushare-test-user"
PARTS = ("crd", "namespace", "rbac", "policy", "certificates")
DEFRAG = [manifests.CONFIG / "components/defrag" / name for name in ("rights.yaml", "policy.yaml")]
Patch = dict[str, Any] | list[dict[str, Any]]
PATHS = {
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Node": "/api/v1/nodes",
    "Event": "/apis/events.k8s.io/v1/namespaces/{namespace}/events",
    contract.GPUNODE_KIND: contract.GPUNODE_PATH,
}


class Cluster:
    """The operations of the tests on a cluster, as an administrator or as another user."""

    def __init__(self, administrator: access.Access, namespace: str) -> None:
        self.administrator = administrator
        self.kubectl = administrator.kubectl
        self._program = (str(administrator.kubectl_program), f"--kubeconfig={administrator.kubeconfig}")
        self.namespace = namespace

    def create(self, manifest: dict[str, Any], *, user: str = "", dry_run: bool = False) -> dict[str, Any]:
        """Create an object in the tests' namespace; return it as stored."""
        path = PATHS[manifest["kind"]].format(namespace=self.namespace)
        return self.administrator.create(path, manifest, user=user, dry_run=dry_run)

    def warned(self, manifest: dict[str, Any], *flags: str) -> str:
        """Return the warnings that creating an object gives."""
        command = (
            *self._program,
            "create",
            f"--namespace={self.namespace}",
            "--filename=-",
            "--validate=false",
            *flags,
        )
        environment = {**os.environ, **access.KUBECTL_ENVIRONMENT}
        ended = subprocess.run(
            command,
            input=json.dumps(manifest),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    def refused(self, manifest: dict[str, Any], *, user: str = "", dry_run: bool = False) -> str:
        """Return the error message with which creating an object is rejected."""
        with pytest.raises(lab_errors.LabError) as caught:
            self.create(manifest, user=user, dry_run=dry_run)
        return str(caught.value)

    def patch(self, name: str, patch: Patch, *, user: str = "", query: str = "") -> dict[str, Any]:
        """Change a pod by a merge patch or a JSON patch; return it as stored."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
        return self.administrator.patch(path + query, patch, user=user)

    def patch_refused(self, name: str, patch: Patch, *, user: str = "", query: str = "") -> str:
        """Return the error message with which changing a pod is rejected."""
        with pytest.raises(lab_errors.LabError) as caught:
            self.patch(name, patch, user=user, query=query)
        return str(caught.value)

    def run_refused(self, *arguments: str, **options: Any) -> str:
        """Return the error message with which a kubectl command is rejected."""
        with pytest.raises(lab_errors.LabError) as caught:
            self.kubectl(*arguments, **options)
        return str(caught.value)


@pytest.fixture(scope="module")
def installed(api_server: access.Access) -> Iterator[Cluster]:
    """Install CRD, RBAC and policies, and a MutatingWebhookConfiguration that calls no webhook."""
    parts = [document for part in PARTS for document in manifests.objects(manifests.CONFIG / "base" / part)]
    defrag = [document for path in DEFRAG for document in manifests.documents(path)]
    apply(api_server, [*parts, *defrag, matching_no_pod()])
    api_server.wait_until_established("gpunodes.gpushare.io")
    try:
        with api_server.namespace("config") as namespace:
            for shared in ("kube-system", "gpushare-system"):
                api_server.ensure_default_service_account(shared)
            here = Cluster(api_server, namespace)
            allow(here, USER, ["*"], ["pods", "pods/status", "pods/binding", "pods/ephemeralcontainers"])
            _wait_for_policies(here)
            yield here
    finally:
        # The other objects do no harm, but these would reject what tests of other parts do.
        withdraw(api_server, [*manifests.objects(manifests.CONFIG / "base" / "policy"), matching_no_pod()])


def matching_no_pod() -> dict[str, Any]:
    """Return the MutatingWebhookConfiguration changed to match no pod: no webhook runs here, and tests act for it."""
    configuration = manifests.named("MutatingWebhookConfiguration", "gpushare")
    for hook in configuration["webhooks"]:
        for condition in hook["matchConditions"]:
            condition["expression"] = "false"
    return configuration


def allow(cluster: Cluster, user: str, verbs: list[str], resources: list[str], name: str = USER) -> None:
    """Give a user rights in the tests' namespace."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": name, "namespace": cluster.namespace}
    common = {"apiVersion": f"{group}/v1", "metadata": metadata}
    rules = [{"apiGroups": [""], "resources": resources, "verbs": verbs}]
    subjects = [{"apiGroup": group, "kind": "User", "name": user}]
    role_reference = {"apiGroup": group, "kind": "Role", "name": name}
    binding = {**common, "kind": "RoleBinding", "roleRef": role_reference, "subjects": subjects}
    apply(cluster.administrator, [{**common, "kind": "Role", "rules": rules}, binding])


def _wait_for_policies(cluster: Cluster) -> None:
    """Wait until policies are enforced, which is a moment after their creation."""
    pod = {"spec": {"containers": [{"name": "main", "image": "x"}]}, "apiVersion": "v1", "kind": "Pod"}
    objects = {
        "gpushare-pods": pod | {"metadata": {"name": "probe", "annotations": {"gpushare.io/node": "x"}}},
        "gpushare-agent": {"apiVersion": "gpushare.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": "probe"}},
        "gpushare-events": {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "probe"},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "regarding": {"namespace": cluster.namespace},
            "type": "Normal",
            "reason": "Probe",
            "action": "Probe",
            "reportingController": "gpushare.io/probe",
            "reportingInstance": "probe",
        },
    }
    agent = "system:serviceaccount:gpushare-system:gpushare-agent"
    deadline = time.monotonic() + WAIT_SECONDS
    for policy, manifest in objects.items():
        user = "" if policy == "gpushare-pods" else agent
        while True:
            try:
                cluster.create(manifest, user=user, dry_run=True)
            except lab_errors.LabError as error:
                if policy in str(error):
                    break
                raise
            assert time.monotonic() < deadline, f"{policy} is not in force after {WAIT_SECONDS} s"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def own() -> Iterator[access.Access]:
    """A separate API server, because uninstalling would remove what other tests installed."""
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        try:
            administrator = cluster.up(directory, node_count=0, owner=os.getpid())
            with _controller(administrator):
                yield administrator
        finally:
            cluster.down(directory)


@contextlib.contextmanager
def _controller(own: access.Access) -> Iterator[None]:
    """Finalize terminating namespaces, as the controller manager would."""
    phases = '--output=jsonpath={.metadata.name} {.status.phase}{"\\n"}'
    command = [str(own.kubectl_program), f"--kubeconfig={own.kubeconfig}", "get", "namespaces", "--watch", phases]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        controller = threading.Thread(target=_end_namespaces, args=(own, watch.stdout))
        controller.start()
        try:
            yield
        finally:
            watch.terminate()
            controller.join()


def _end_namespaces(own: access.Access, phases: Iterable[str]) -> None:
    for line in phases:
        name, _, phase = line.strip().partition(" ")
        if phase == "Terminating" and name in (SYSTEM, contract.DEMAND_NAMESPACE):
            with contextlib.suppress(lab_errors.LabError):  # it is gone already
                own.finalize_namespace(name)


@pytest.fixture
def run(own: access.Access, tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """install.sh on the API server, which has nothing of gpushare before and after."""

    def run_it(*flags: str, **more: str) -> subprocess.CompletedProcess[str]:
        return install(*flags, path=str(own.kubectl_program.parent), kubeconfig=own.kubeconfig, more=more, cwd=tmp_path)

    yield run_it
    remove(own)
    own.delete("/api/v1/nodes")
