"""Random steps on one node: pods of all kinds arrive, end, are resized and killed, and so are parts of gpushare.

A container or pod is killed once at most, because the kubelet waits ever longer before it restarts one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from gpushare import contract
from lab import access, gpushare, lab_errors, node_cgroup
from tests.e2e.isolation_node import Node
from tests.e2e.observation import annotation

FIRST_PODS, MAX_PODS = 4, 14
POLL_SECONDS = 0.3
READY_SECONDS = 180.0
MIG = ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb")
WHOLE = "nvidia.com/gpu"
PERCENTS, GIBS = (10, 20, 30, 50), (1, 2, 4, 8)


def until(condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"after {seconds:.0f} s: not {what}")
        time.sleep(POLL_SECONDS)


def is_offered(administrator: access.Access, node: str) -> bool:
    amounts = administrator.read(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    return [int(amounts.get(name, 0)) for name in (contract.RESOURCE_PERCENT, WHOLE, *MIG)] == [200, 1, 2, 1, 1]


def percent_offered(administrator: access.Access, node: str) -> int:
    return int(administrator.read(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(contract.RESOURCE_PERCENT, 0))


def replace_restarted(administrator: access.Access) -> None:
    """Replace gpushare's pods whose containers have been killed."""
    for pod in (pod for part in ("agent", "webhook") for pod in gpushare.pods(administrator, part)):
        if any(status["restartCount"] for status in pod["status"].get("containerStatuses", ())):
            replace(administrator, pod)


def replace(administrator: access.Access, pod: dict[str, Any]) -> None:
    options = (*gpushare.SCOPE, "--wait=false", "--ignore-not-found")
    administrator.kubectl("delete", "pod", pod["metadata"]["name"], *options)


class World:
    """The pods, and the possible actions on them. placed: the UIDs of pods that got a share or a device."""

    def __init__(self, node: Node, seed: int) -> None:
        self._node, self._draw = node, random.Random(seed)
        self.created = 0
        self.placed: set[str] = set()
        self._killed: set[str] = set()
        self._steps = {
            self.arrives: 14,
            self.ends: 5,
            self.ends_by_force: 2,
            self.gpu_is_emptied: 2,
            self.is_killed: 2,
            self.is_resized: 2,
            self.agent_is_killed: 1,
            self.agent_is_replaced: 1,
            self.replica_is_killed: 1,
            self.mps_server_is_killed: 1,
            self.mps_daemon_is_killed: 1,
        }

    def step(self) -> str:
        """Do something; return what, in words."""
        (act,) = self._draw.choices([*self._steps], [*self._steps.values()])
        pods = self._node.user.pods()
        self.placed |= {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")}
        if len(pods) >= MAX_PODS:
            act = self.ends
        elif not pods or self.created < FIRST_PODS:
            act = self.arrives
        act(pods)
        return act.__name__.replace("_", " ")

    def arrives(self, _: list[dict[str, Any]]) -> None:
        percent, gib = self._draw.choice(PERCENTS), self._draw.choice(GIBS)
        share = {"request": f"{percent}%", "memory": f"{gib}Gi"}
        limited = {**share, "limit": f"{percent}%"}
        annotations, limits = self._draw.choice(
            (
                (share, {}),
                ({**share, "isolation": "arbiter"}, {}),
                ({**limited, "isolation": "mps"}, {}),
                ({**limited, "isolation": "mps"}, {}),
                ({**limited, "isolation": "auto"}, {}),
                ({**share, "isolation": "none"}, {}),
                ({**share, "isolation": "mig"}, {}),
                ({**share, "isolation": "mig"}, {}),
                ({"request": "1"}, {}),
                ({}, {WHOLE: "1"}),
                *(({}, {name: "1"}) for name in MIG),
            )
        )
        until(lambda: self._is_created(annotations, limits), "accepted by the webhook")
        self.created += 1

    def _is_created(self, annotations: dict[str, str], limits: dict[str, str]) -> bool:
        """Create a pod, as its owner would: the API server calls a killed replica until it knows, and refuses it."""
        try:
            self._node.apply(f"pod-{self.created}", "holds", annotations, limits)
        except lab_errors.LabError as error:
            if "failed calling webhook" not in str(error):
                raise
            return False
        return True

    def ends(self, pods: list[dict[str, Any]]) -> None:
        self._delete(pods, "--grace-period=5")

    def ends_by_force(self, pods: list[dict[str, Any]]) -> None:
        self._delete(pods, *gpushare.AT_ONCE)

    def _delete(self, pods: list[dict[str, Any]], *options: str) -> None:
        self._delete_all([self._draw.choice(pods)], *options)

    def _delete_all(self, pods: list[dict[str, Any]], *options: str) -> None:
        names = (pod["metadata"]["name"] for pod in pods)
        self._node.user.kubectl("delete", "pod", *names, "--wait=false", "--ignore-not-found", *options)

    def gpu_is_emptied(self, pods: list[dict[str, Any]]) -> None:
        """End all pods on a shared GPU: it may be shared in another way next."""
        uuid = self._node.uuids[self._draw.randrange(2)]
        there = [pod for pod in pods if uuid in annotation(pod, contract.GPU_UUIDS)]
        if there:
            self._delete_all(there)

    def is_killed(self, pods: list[dict[str, Any]]) -> None:
        """SIGKILL all processes of a pod's container, as the kernel does when memory runs out."""
        uid = self._draw.choice(pods)["metadata"]["uid"]
        if uid not in self._killed:
            self._killed.add(uid)
            for pid in node_cgroup.members_below(self._node.where.cgroup, f"pod{uid}"):
                _kill(pid)

    def is_resized(self, pods: list[dict[str, Any]]) -> None:
        shares = [pod for pod in pods if contract.ALLOCATION in pod["metadata"].get("annotations", {})]
        if shares:
            name, asked = self._draw.choice(shares)["metadata"]["name"], f"{self._draw.choice(GIBS)}Gi"
            change = {"metadata": {"annotations": {contract.MEMORY: asked}}}
            with contextlib.suppress(lab_errors.LabError):  # it may have ended, or be about to
                self._node.user.access.patch(f"/api/v1/namespaces/{self._node.user.namespace}/pods/{name}", change)

    def agent_is_killed(self, _: list[dict[str, Any]]) -> None:
        self._kill_part("agent")

    def agent_is_replaced(self, _: list[dict[str, Any]]) -> None:
        for agent in gpushare.pods(self._node.user.access, "agent"):
            replace(self._node.user.access, agent)

    def replica_is_killed(self, _: list[dict[str, Any]]) -> None:
        self._kill_part("webhook")

    def _kill_part(self, part: str) -> None:
        pods = gpushare.pods(self._node.user.access, part)
        if pods:
            pod = self._draw.choice(pods)
            uid = pod["metadata"]["uid"]
            if uid in self._killed:
                replace(self._node.user.access, pod)
            else:
                self._killed.add(uid)
                gpushare.kill(self._node.where, pod)
            until(lambda: all(map(gpushare.is_ready, gpushare.pods(self._node.user.access, part))), f"{part} ready")

    def mps_server_is_killed(self, _: list[dict[str, Any]]) -> None:
        with contextlib.suppress(OSError, ValueError):  # there is none now
            _kill(self._node.server(self._draw.randrange(2)))

    def mps_daemon_is_killed(self, _: list[dict[str, Any]]) -> None:
        daemon = self._node.daemon(self._draw.randrange(2))
        if daemon is not None:
            _kill(daemon)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
