"""The command of the CronJob `gpushare-defrag`, with the rights of its ServiceAccount: they suffice, and each is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare import contract
from lab import api_audit
from tests import builders, rights
from tests.config import manifests
from tests.webhook.conftest import Cluster
from tests.webhook.replica import until
from tests.webhook.test_stuck_on_a_real_scheduler import ALLOCATABLE

pytestmark = pytest.mark.apiserver

COMPONENT = manifests.CONFIG / "components" / "defrag"
OWNERS = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "ReplicationController": "v1"}


def owner(cluster: Cluster, kind: str) -> dict[str, Any]:
    """A stored workload of one pod, as an owner reference. No controller acts on it."""
    labels = {"app": kind.lower()}
    template = {"metadata": {"labels": labels}, "spec": builders.pod("x")["spec"]}
    made = {
        "apiVersion": OWNERS[kind],
        "kind": kind,
        "metadata": {"name": kind.lower(), "namespace": cluster.namespace},
        "spec": {
            "replicas": 1,
            "selector": labels if kind == "ReplicationController" else {"matchLabels": labels},
            "template": template,
        },
    }
    stored = json.loads(cluster.kubectl("create", "-f", "-", "-o", "json", input=json.dumps(made)))
    uid = stored["metadata"]["uid"]
    return {"apiVersion": OWNERS[kind], "kind": kind, "name": kind.lower(), "uid": uid, "controller": True}


def with_a_claim(cluster: Cluster, manifest: dict[str, Any]) -> dict[str, Any]:
    """The pod with a volume of a bound claim, which has the plan read claims and volumes."""
    name = f"volume-of-{cluster.namespace}"
    capacity, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {"capacity": capacity, "accessModes": modes, "hostPath": {"path": "/tmp"}, "storageClassName": ""},
    }
    spec = {"resources": {"requests": capacity}, "accessModes": modes, "volumeName": name, "storageClassName": ""}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
    cluster.administrator.create("/api/v1/persistentvolumes", volume)
    cluster.administrator.create(f"{cluster.path}/persistentvolumeclaims", claim)
    bound = {"status": {"phase": "Bound", "capacity": capacity, "accessModes": modes}}
    cluster.administrator.patch(f"{cluster.path}/persistentvolumeclaims/data/status", bound)
    manifest["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    return manifest


@contextmanager
def recreating(cluster: Cluster, pods: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Act as kubelet and owners: end each evicted pod, and create another."""
    stopping = threading.Event()

    def run() -> None:
        left = dict(pods)
        while left and not stopping.wait(0.1):
            for name, manifest in list(left.items()):
                if cluster.pod(name)["metadata"].get("deletionTimestamp"):
                    successor = name if name == "statefulset" else f"{name}-2"
                    cluster.delete(name)
                    cluster.create({**manifest, "metadata": {**manifest["metadata"], "name": successor}})
                    del left[name]

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def gpu_of(cluster: Cluster, name: str) -> str:
    return str(cluster.pod(name)["metadata"]["annotations"].get(contract.GPU_UUIDS, ""))


def run_command(cluster: Cluster) -> str:
    """Run the CronJob's command as its ServiceAccount; return what it printed."""
    kubeconfig = cluster.directory / "kubeconfig"
    cluster.administrator.service_account_kubeconfig(contract.SYSTEM_NAMESPACE, rights.DEFRAG, kubeconfig)
    environment = {"KUBECONFIG": str(kubeconfig), "KUBECTL_PATH": str(cluster.administrator.kubectl_program)}
    (job,) = manifests.documents(COMPONENT / "cronjob.yaml")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    command = [sys.executable, "-m", "kubectl_gpushare", *container["args"]]
    ended = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=90, check=False
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said + cluster.explain()
    return said


def test_scheduled_defragmentation_moves_pods_and_needs_each_permission(cluster: Cluster) -> None:
    for name in ("rights.yaml", "policy.yaml"):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={COMPONENT / name}")
    cluster.describe("node-a", ALLOCATABLE)
    cluster.start()
    pods = {}
    for kind in OWNERS:
        pods[kind.lower()] = builders.pod(kind.lower(), request="0.25", policy="spread")
        pods[kind.lower()]["metadata"]["ownerReferences"] = [owner(cluster, kind)]
    with_a_claim(cluster, pods["replicaset"])
    for name, manifest in {**pods, "stays": builders.pod("stays", request="0.25", policy="spread")}.items():
        cluster.create_placed(manifest)
        cluster.bind(name)
    until(cluster.is_settled, cluster.explain)
    cluster.create(builders.pod("first", request="1"))
    cluster.create(builders.pod("second", request="1"))
    with recreating(cluster, pods):
        said = run_command(cluster)
        assert gpu_of(cluster, "first"), said
        assert gpu_of(cluster, "second"), said
        # The third one moves once no other pod shares its GPU.
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.pods()}
        (moves_next,) = set(pods) & set(uids) - {"statefulset"} or {"statefulset"}
        for name in uids:
            if name != moves_next and gpu_of(cluster, name) == gpu_of(cluster, moves_next):
                cluster.delete(name)
        until(cluster.is_settled, cluster.explain)
        cluster.create(builders.pod("third", request="1"))
        said = run_command(cluster)
        assert gpu_of(cluster, "third"), said
    node = cluster.node()
    assert not node.cordoned
    assert not [key for key in node.labels if key.startswith(contract.DEFRAG_LABEL_PREFIX)]

    assert cluster.administrator.lab is not None
    log = cluster.administrator.lab.audit_log
    assert not [call for call in api_audit.calls(log) if call.account == rights.DEFRAG and call.decision == "forbid"]
    whole = rights.expected(rights.EVERYWHERE[rights.DEFRAG], rights.AT_HOME[rights.DEFRAG])
    assert rights.used_on(cluster.administrator, rights.DEFRAG) == whole
