"""The API server of the lab: started, used, killed, started again, and gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import access, cluster, daemon_process, lab_errors, lab_layout

pytestmark = pytest.mark.apiserver

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "pod"},
    "spec": {"containers": [{"name": "main", "image": "gpushare/sample:0.1"}]},
}


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as scratch:
        directory = Path(scratch) / "lab"
        yield directory
        cluster.down(directory)


def kill(name: str, lab: lab_layout.Layout) -> int:
    pid = daemon_process.pid_of(name, lab.processes)
    assert pid is not None
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, signal.SIGKILL)
    assert daemon_process.ended(handle, 10.0)
    os.close(handle)
    return pid


def test_namespace_and_its_pod_are_removed_afterwards(api_server: access.Access) -> None:
    with api_server.namespace() as namespace:
        api_server.kubectl("create", f"--namespace={namespace}", "--filename=-", input=json.dumps(POD))
        assert api_server.kubectl("get", "pods", f"--namespace={namespace}", "--output=name") == "pod/pod\n"
    assert api_server.kubectl("get", "namespace", namespace, "--ignore-not-found") == ""


def test_without_a_number_a_lab_keeps_its_nodes(api_server: access.Access) -> None:
    if api_server.lab is None:
        pytest.skip("one's own cluster is not a lab")
    assert cluster.up(api_server.lab.directory) == api_server
    assert lab_layout.load(api_server.lab.directory).nodes == ()


@pytest.mark.parametrize(
    "document",
    [
        {**POD, "spec": {**POD["spec"], "restart": "Never"}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "odd"}, "rule": []},
    ],
)
def test_a_server_side_apply_rejects_unknown_fields_without_validation_by_kubectl(
    api_server: access.Access, document: dict[str, object]
) -> None:
    with pytest.raises(lab_errors.LabError, match="field not declared in schema"):
        api_server.kubectl("apply", "--server-side", "--filename=-", input=json.dumps(document))


def test_service_account_kubeconfig_has_only_its_rights(api_server: access.Access, tmp_path: Path) -> None:
    with api_server.namespace() as namespace:
        path = api_server.service_account_kubeconfig(namespace, "default", tmp_path / "kubeconfig")
        limited = access.Access(path, api_server.server, api_server.ca_file, api_server.kubectl_program)
        assert path.stat().st_mode & 0o077 == 0
        who = limited.kubectl("auth", "whoami", "--output=jsonpath={.status.userInfo.username}")
        assert who == f"system:serviceaccount:{namespace}:default"
        with pytest.raises(lab_errors.LabError, match="cannot list resource"):
            limited.kubectl("get", "pods")


def test_given_cluster_is_reached_by_its_kubeconfig(api_server: access.Access, tmp_path: Path) -> None:
    own = access.from_kubeconfig(api_server.kubeconfig, tmp_path)
    assert (own.server, own.ca_file.read_bytes()) == (api_server.server, api_server.ca_file.read_bytes())
    assert own.kubectl("get", "--raw=/readyz") == own.text("/readyz") == "ok"
    with pytest.raises(lab_errors.LabError, match="cannot be used"):
        access.from_kubeconfig(tmp_path / "missing", tmp_path)
    document = yaml.safe_load(own.kubeconfig.read_text())
    document["users"][0]["user"] = {"exec": {"command": "cloud"}}
    own.kubeconfig.write_text(yaml.safe_dump(document))
    with pytest.raises(lab_errors.LabError, match="neither a client certificate nor a token; make a token by `kubectl"):
        own.text("/readyz")


def test_anonymous_requests_get_health_and_nothing_else(api_server: access.Access) -> None:
    curl = ["--cacert", str(api_server.ca_file), "--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]
    codes = [
        subprocess.run(["curl", *curl, api_server.server + path], capture_output=True, text=True, check=True).stdout
        for path in ("/readyz", "/api/v1/namespaces", "/version")
    ]
    assert codes == ["200", "401", "401"]


POLICY = """\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: {name}}}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}
    resourceRules: [{{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}}]
  validations: [{{expression: "object.metadata.name.startsWith('good')", message: "a good name, please"}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: {name}}}
spec: {{policyName: {name}, validationActions: [Deny]}}
"""


def test_an_admission_policy_is_enforced(api_server: access.Access) -> None:
    def refused(namespace: str, name: str) -> bool:
        try:
            api_server.kubectl("create", "configmap", name, f"--namespace={namespace}")
        except lab_errors.LabError as error:
            assert "a good name, please" in str(error)
            return True
        return False

    with api_server.namespace() as namespace:
        policy = POLICY.format(name=namespace)
        api_server.kubectl("create", "--filename=-", input=policy)
        try:
            # The API server enforces a policy a moment after its creation.
            assert any(refused(namespace, f"bad-{attempt}") for attempt in range(100))
            assert not refused(namespace, "good")
        finally:
            api_server.kubectl("delete", "--filename=-", input=policy)


def test_lab_restarts_in_the_same_directory(directory: Path) -> None:
    for _ in range(2):
        cluster.up(directory, node_count=0)
        lab = lab_layout.load(directory)
        pids = [daemon_process.pid_of(name, lab.processes) for name in ("etcd", "kube-apiserver")]
        assert None not in pids
        assert cluster.down(directory)
        assert not directory.exists()
        assert [pid for pid in pids if pid and daemon_process.start_time(pid)] == []
    assert not cluster.down(directory)


def test_stored_objects_survive_killed_processes(directory: Path) -> None:
    administrator = cluster.up(directory, node_count=0)
    lab = lab_layout.load(directory)
    administrator.kubectl("create", "configmap", "kept")
    killed = kill("kube-apiserver", lab), kill("etcd", lab)
    again = cluster.up(directory, node_count=0)
    assert again == administrator
    assert "kept" in again.kubectl("get", "configmaps", "--output=name")
    assert daemon_process.pid_of("kube-apiserver", lab.processes) not in {None, *killed}


def test_lab_ends_with_its_killed_owner(directory: Path) -> None:
    script = (
        "import os, pathlib, signal, sys; from lab import cluster;"
        "cluster.up(pathlib.Path(sys.argv[1]), node_count=0, owner=os.getpid());"
        "print('up', flush=True);"
        "sys.stdin.readline();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        lab = lab_layout.load(directory)
        guard = daemon_process.pid_of("guard", lab.processes)
        assert guard is not None
        handle = os.pidfd_open(guard)
        owner.communicate("\n")
    assert owner.returncode == -signal.SIGKILL
    assert daemon_process.ended(handle, 30.0)
    assert not directory.exists()


def test_directory_with_foreign_files_is_rejected_unchanged() -> None:
    with tempfile.TemporaryDirectory(prefix="gpushare-", dir="/tmp") as directory:
        (Path(directory) / "thesis.tex").touch()
        with pytest.raises(lab_errors.LabError, match="is neither empty nor the directory of a lab"):
            cluster.up(Path(directory), node_count=0)
        assert (Path(directory) / "thesis.tex").exists()
