"""Every killed component recovers the true state, and until then nothing runs without its limits."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from bench.steady import kubelet_log
from deviceplugin.state import advertisement
from gpushare import contract, ledger
from lab import access, cluster, daemon_process, gpushare, lab_layout
from tests.e2e.observation import Observer, annotation, eventually
from tests.e2e.test_life_of_a_pod import sleeper
from webhook.store import reservation

pytestmark = pytest.mark.lab

COMING_SECONDS, MAX_COMING = 0.7, 60  # a node takes at most 110 pods
KUBELET_RESTARTS = 3
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{contract.SYSTEM_NAMESPACE}/leases/{contract.PLACER_LEASE}"


def kill(where: lab_layout.Layout, name: str) -> None:
    """Send SIGKILL to the recorded pid."""
    pid = daemon_process.pid_of(name, where.processes)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: daemon_process.pid_of(name, where.processes) is None, what=f"{name} gone")


def test_a_running_pod_keeps_its_limit_after_its_agent_is_killed(
    user: Observer, installed: lab_layout.Layout, lab: access.Access
) -> None:
    user.apply(sleeper("holder", request="0.25"))
    pod = user.running("holder")
    (held,) = [entry for entry in user.gpunode().allocations if entry.pod.namespace == user.namespace]
    limit = held.shares[0].memory_bytes
    part = limit // 4
    user.inside("holder", "sh", "-c", f"gpushare-probe --allocate {part} --hold 600 > /tmp/held 2>&1 &")
    eventually(lambda: f"allocated {part}" in user.file("holder", "/tmp/held"), what="a quarter held")

    with gpushare.without_agent(installed, installed.nodes[0], lab):
        # No process can join while there is no arbiter: it fails closed.
        without = user.inside("holder", "sh", "-c", "! gpushare-probe --allocate 1 2>&1")
        assert "allocated 1" not in without
        assert "gpushare: " in without
    # Memory of the surviving process is still counted.
    user.inside("holder", "sh", "-c", f"gpushare-probe --allocate {limit - part}")
    refused = user.inside("holder", "sh", "-c", f"! gpushare-probe --allocate {limit - part + 1}")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in refused
    again = user.pod("holder")
    assert again is not None
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 0


def test_no_pod_is_rejected_while_the_agent_is_replaced(user: Observer, lab: access.Access) -> None:
    """Replace the agent as an upgrade does, while bare pods, which no controller would recreate, keep arriving."""
    (first,) = gpushare.pods(lab, "agent")
    lab.kubectl("delete", "pod", first["metadata"]["name"], *gpushare.SCOPE, "--wait=false")
    names: list[str] = []
    began = time.monotonic()

    def has_come() -> bool:
        if len(names) < min(MAX_COMING, (time.monotonic() - began) / COMING_SECONDS):
            names.append(f"comes-{len(names)}")
            user.apply(sleeper(names[-1], request="0.02", memory="1Gi"))
        return any(gpushare.is_ready(pod) for pod in gpushare.pods(lab, "agent"))

    eventually(has_come, seconds=90, what="the next agent ready")
    for name in names:
        user.running(name)
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in user.pods()}
    assert phases == dict.fromkeys(names, "Running")
    user.delete("pods", "--all")
    user.ledger_is_empty()


@pytest.mark.timeout(600)  # for all attempts, on a busy machine
def test_pods_share_again_after_a_kubelet_restart(user: Observer, installed: lab_layout.Layout) -> None:
    """Includes a pod deleted while the kubelet was down: at its start the kubelet still counts that pod's devices."""
    for _ in range(KUBELET_RESTARTS):
        judged = restart_kubelet_with_waiting_pod(user, installed)
        if judged is not None:
            break
        user.delete("pods", "--all")
        user.ledger_is_empty()
    assert judged, f"{KUBELET_RESTARTS} times the kubelet judged the pod before it had the agent's devices"
    assert user.inside("before", "gpushare-probe")
    user.delete("pods", "--all")
    user.ledger_is_empty()


def restart_kubelet_with_waiting_pod(user: Observer, where: lab_layout.Layout) -> dict[str, Any] | None:
    """Restart the kubelet while a pod waits for it that has a deleted pod's GPU; return the running pod.

    Return None if the kubelet rejected it before it had the agent's devices: no device plugin can prevent that.
    """
    whole = ["before", "deleted", "third", "fourth"]
    for name in whole:
        user.apply(sleeper(name, request="1", memory="1Gi"))
    for name in whole:
        user.running(name)
    kubelet = f"{where.nodes[0].name}.kubelet"
    kill(where, kubelet)
    known = (where.logs / kubelet).stat().st_size
    user.access.delete(f"/api/v1/namespaces/{user.namespace}/pods/deleted")
    user.apply(sleeper("after", request="1", memory="1Gi"))
    eventually(lambda: (user.pod("after") or {})["spec"].get("nodeName"), what="bound to the GPU that is free again")
    cluster.up(where.directory)

    def judged() -> dict[str, Any] | None:
        pod = user.pod("after")
        assert pod is not None
        statuses = pod["status"].get("containerStatuses") or []
        runs = bool(statuses) and all(status.get("ready") for status in statuses)
        return pod if runs or pod["status"]["phase"] == "Failed" else None

    pod = eventually(judged, seconds=90, what="the pod that waited judged by the kubelet, and started")
    if pod["status"]["phase"] != "Failed":
        return pod
    lines = (where.logs / kubelet).read_bytes()[known:].decode(errors="replace").splitlines()
    refused = [refusal.at for refusal in kubelet_log.refusals(lines) if refusal.uid == pod["metadata"]["uid"]]
    listed = [min(kubelet_log.listings(lines, resource), default=float("inf")) for resource in advertisement.COUNTERS]
    assert refused, pod["status"]
    assert max(refused) <= max(listed), pod["status"]
    return None


def test_without_the_webhook_only_requesting_pods_are_rejected(
    user: Observer, installed: lab_layout.Layout, lab: access.Access
) -> None:
    user.apply(sleeper("early", request="0.25"))
    user.running("early")
    user.ledger_is_confirmed()
    with gpushare.without_webhook(installed, lab):
        assert contract.WEBHOOK_NAME in user.refused(sleeper("late", request="0.25"))
        user.apply(sleeper("plain"))
        user.delete("pod", "early")
        # As a leader does that ends by itself. `tests/gpushare/cluster/test_lease.py` waits for a dead one's Lease.
        lab.patch(LEASE, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
    user.ledger_is_empty()
    user.apply(sleeper("late", request="0.25"))
    user.running("late")


def test_everything_survives_an_api_server_restart(
    user: Observer, installed: lab_layout.Layout, lab: access.Access
) -> None:
    user.apply(sleeper("first", request="0.5"))
    user.running("first")
    kill(installed, "kube-apiserver")
    cluster.up(installed.directory)
    user.apply(sleeper("second", request="0.5"))
    second = user.running("second", seconds=90)
    assert annotation(second, contract.ALLOCATION)
    assert ledger.violations(user.gpunode()) == []
    user.delete("pods", "--all")
    # The webhook never saw a pod that came and went before its watches were back; that pod's share expires.
    user.ledger_is_empty(seconds=reservation.LIFETIME_SECONDS + 30)
