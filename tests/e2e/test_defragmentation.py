"""Moves on a real Kubernetes, by `kubectl gpushare defrag --apply` and by the CronJob: a pod gets a whole GPU."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import contract, ledger
from lab import access, lab_layout
from tests import builders
from tests.config import manifests
from tests.e2e.observation import Observer, annotation, eventually

pytestmark = pytest.mark.lab

SLEEP = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"]


def sleeper(name: str, **annotations: str) -> dict[str, Any]:
    manifest = builders.pod(name, **annotations)
    del manifest["metadata"]["namespace"]
    manifest["spec"]["containers"][0]["command"] = SLEEP
    manifest["spec"]["terminationGracePeriodSeconds"] = 1
    return manifest


def workload(kind: str, name: str, replicas: int, **annotations: str) -> dict[str, Any]:
    pod = sleeper(name, **annotations)
    template = {
        "metadata": {"labels": {"app": name}, "annotations": pod["metadata"]["annotations"]},
        "spec": pod["spec"],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            **({"podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {}),
        },
    }


@pytest.fixture
def cron_job(installed: lab_layout.Layout, lab: access.Access, tmp_path: Path) -> Iterator[str]:
    """The component `defrag`, suspended so that it runs only when a test makes a Job of it."""
    suspended = json.dumps([{"op": "add", "path": "/spec/suspend", "value": True}])
    wanted = {
        "components": [os.path.relpath(manifests.CONFIG / "components" / "defrag", tmp_path.resolve())],
        "patches": [{"target": {"kind": "CronJob"}, "patch": suspended}],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(wanted))
    lab.kubectl("apply", "--server-side", f"--kustomize={tmp_path}")
    yield "cronjob/gpushare-defrag"
    lab.kubectl("delete", f"--kustomize={tmp_path}")


def spread_on_four(user: Observer, kind: str) -> set[str]:
    """Create a workload with a pod on each of the four GPUs; return the UIDs of its pods."""
    path = f"/apis/apps/v1/namespaces/{user.namespace}/{kind.lower()}s"
    user.access.create(path, workload(kind, "spread", 4, request="0.4", policy="spread"))

    def spread() -> set[str] | None:
        running = [pod for pod in user.pods() if pod["status"].get("phase") == "Running"]
        uuids = {annotation(pod, contract.GPU_UUIDS) for pod in running}
        return uuids if len(running) == 4 and len(uuids) == 4 else None

    eventually(spread, seconds=90, what="one pod on each of four GPUs")
    return {pod["metadata"]["uid"] for pod in user.pods()}


def test_a_pod_waiting_for_a_whole_gpu_gets_one_by_one_move(user: Observer) -> None:
    before = spread_on_four(user, "Deployment")
    user.apply(sleeper("whole", request="1"))
    eventually(lambda: annotation(user.pod("whole") or {"metadata": {}}, contract.REASON), what="a reason to wait")

    process = user.plugin_run("defrag", "whole", "--apply", f"--namespace={user.namespace}")
    assert "1 move" in process.stdout
    assert re.search(r"\[1/1\] \S+/spread-\S+ is on lab-node-0 now\n", process.stderr), "the successor was not seen"
    assert "/whole is on lab-node-0 now" in process.stderr
    one_was_moved_for_it(user, before)


def test_a_job_of_the_cron_job_makes_room_for_a_waiting_pod(cron_job: str, user: Observer, lab: access.Access) -> None:
    before = spread_on_four(user, "StatefulSet")
    user.apply(sleeper("whole", request="1"))
    eventually(lambda: annotation(user.pod("whole") or {"metadata": {}}, contract.REASON), what="a reason to wait")
    system = f"--namespace={contract.SYSTEM_NAMESPACE}"
    lab.kubectl("create", "job", system, f"--from={cron_job}", user.namespace)
    jobs = f"/apis/batch/v1/namespaces/{contract.SYSTEM_NAMESPACE}/jobs/{user.namespace}"

    def ended() -> dict[str, Any] | None:
        status: dict[str, Any] = lab.read(jobs)["status"]
        return status if status.get("succeeded") or status.get("failed") else None

    status = eventually(ended, seconds=120, what="a Job that has ended")
    said = lab.kubectl("logs", system, f"job/{user.namespace}")
    assert status.get("succeeded") == 1, said
    assert re.search(rf"\] {user.namespace}/spread-\d is on lab-node-0 now\n", said), "the successor was not seen"
    assert f"{user.namespace}/whole is on lab-node-0 now" in said
    user.running("whole")
    after = {pod["metadata"]["uid"] for pod in user.pods("app=spread") if "deletionTimestamp" not in pod["metadata"]}
    assert before - after, said
    assert ledger.violations(user.gpunode()) == []
    assert not user.gpunode().cordoned
    clean_up(user)


def one_was_moved_for_it(user: Observer, before: set[str]) -> None:
    user.running("whole")
    eventually(spread_on_three(user), seconds=60, what="four pods on three GPUs")
    # The moved pod may still be terminating.
    after = {pod["metadata"]["uid"] for pod in user.pods("app=spread") if "deletionTimestamp" not in pod["metadata"]}
    assert len(before & after) == 3, "one pod was moved, and only one"
    assert ledger.violations(user.gpunode()) == []
    eventually(lambda: not user.gpunode().cordoned, what="no GPU that is cordoned")
    clean_up(user)


def clean_up(user: Observer) -> None:
    for kind in ("deployments", "statefulsets"):
        user.access.delete(f"/apis/apps/v1/namespaces/{user.namespace}/{kind}")
    user.access.delete(f"/api/v1/namespaces/{user.namespace}/pods")
    user.ledger_is_empty()


def spread_on_three(user: Observer) -> Any:
    def look() -> bool:
        running = [pod for pod in user.pods("app=spread") if pod["status"].get("phase") == "Running"]
        return len(running) == 4 and len({annotation(pod, contract.GPU_UUIDS) for pod in running}) == 3

    return look
