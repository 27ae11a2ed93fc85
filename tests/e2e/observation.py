"""Reads the cluster for a test: pods, GPUNodes and the inside of containers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpushare import codec, contract
from gpushare.gpunode import GpuNode
from lab import gpushare, lab_errors, node_cgroup
from lab.access import Access

_Value = TypeVar("_Value")
POLL_SECONDS = 0.1


def eventually(look: Callable[[], _Value | None], *, seconds: float = 30.0, what: str) -> _Value:
    """Call `look` until it returns neither None nor False, and return that; fail with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = look()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s: not {what}")
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Observer:
    """A user's view of one namespace and of the ledger."""

    access: Access
    namespace: str

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.access.kubectl(f"--namespace={self.namespace}", *arguments, input=text)

    def apply(self, document: dict[str, Any] | str) -> str:
        """Run `kubectl apply` with a file's path or a manifest; create a pod without kubectl."""
        if isinstance(document, str):
            return self.kubectl("apply", "-f", document)
        if document["kind"] == "Pod":
            return str(self.access.create(self._pods, document)["metadata"]["name"])
        return self.kubectl("apply", "-f", "-", text=json.dumps(document))

    def refused(self, document: dict[str, Any] | str) -> str:
        """Return the error message of an apply that must fail."""
        try:
            answer = self.apply(document)
        except lab_errors.LabError as error:
            return str(error)
        raise AssertionError(f"it was accepted: {answer}")

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def pod(self, name: str) -> dict[str, Any] | None:
        """Return a pod, or None."""
        return self.access.find(f"{self._pods}/{name}")

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """Return the namespace's pods, optionally those of a label selector."""
        query = urllib.parse.urlencode({"labelSelector": selector})
        return list(self.access.read(f"{self._pods}?{query}")["items"])

    def running(self, name: str, *, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until the pod runs with all containers ready; return it."""

        def look() -> dict[str, Any] | None:
            pod = self.pod(name)
            statuses = (pod or {}).get("status", {}).get("containerStatuses") or []
            return pod if statuses and all(status.get("ready") for status in statuses) else None

        try:
            return eventually(look, seconds=seconds, what=f"pod {name} running")
        except AssertionError:
            raise AssertionError(self.kubectl("describe", "pod", name)) from None

    def inside(self, name: str, *command: str, container: str = "") -> str:
        """Run a command in a container; return its standard output."""
        return self.access.execute(self.namespace, name, *command, container=container)

    def file(self, name: str, path: str) -> str:
        """Return a file of a pod in the lab, as its first process with that file sees it."""
        assert self.access.lab is not None
        uid = (self.pod(name) or {})["metadata"]["uid"]
        for pid in sorted(node_cgroup.members_below(self.access.lab.cgroup, f"pod{uid}")):
            with contextlib.suppress(OSError):  # another container, or a process that has ended
                return Path(f"/proc/{pid}/root{path}").read_text()
        raise AssertionError(f"{name} has no {path}")

    def logs(self, name: str, *, previous: bool = False) -> str:
        """Return what the only container of a pod has written; previous: what it wrote before its last restart."""
        return self.access.text(f"{self._pods}/{name}/log{'?previous=true' if previous else ''}")

    def delete(self, *what: str) -> None:
        """Delete with a grace period of one second, by kubectl's words, and wait until the objects are gone."""
        if what[0] not in {"pod", "pods"}:
            self.kubectl("delete", *what, "--grace-period=1", "--timeout=60s", "--ignore-not-found")
            return
        pods = [pod for pod in self.pods() if {"--all", pod["metadata"]["name"]} & {*what[1:]}]
        for pod in pods:
            self.access.delete(f"{self._pods}/{pod['metadata']['name']}", grace_seconds=1)
        uids = {pod["metadata"]["uid"] for pod in pods}
        gone = f"{' '.join(what)} gone from {self.namespace}"
        eventually(lambda: not any(pod["metadata"]["uid"] in uids for pod in self.pods()), seconds=60, what=gone)

    def gpunodes(self) -> list[GpuNode]:
        """Return the GPUNodes."""
        return [codec.read(item) for item in self.access.read(contract.GPUNODE_PATH)["items"]]

    def gpunode(self) -> GpuNode:
        """Return the only GPUNode."""
        (node,) = self.gpunodes()
        return node

    def plugin(self, *arguments: str) -> str:
        """Return the output of `kubectl gpushare …`."""
        return self.plugin_run(*arguments).stdout

    def plugin_run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `kubectl gpushare …`, which kubectl finds on PATH as for a user."""
        command, environment = self._plugin_command(*arguments)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=check)

    @contextlib.contextmanager
    def page(self) -> Iterator[str]:
        """Serve the page of `kubectl gpushare ui`; yield its address."""
        command, environment = self._plugin_command("ui", "--no-browser")
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield next(line.strip() for line in process.stdout if line.strip().startswith("http"))
            finally:
                process.send_signal(signal.SIGINT)

    def _plugin_command(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        command = [str(self.access.kubectl_program), "gpushare", *arguments, f"--kubeconfig={self.access.kubeconfig}"]
        path = f"{Path(sys.executable).parent}:{self.access.kubectl_program.parent}:{os.environ['PATH']}"
        return command, {**os.environ, "PATH": path}

    def ledger_is_confirmed(self) -> None:
        """Wait until every share of this namespace has its pod's UID and no reservation can expire."""

        def look() -> bool:
            held = [entry for node in self.gpunodes() for entry in node.allocations]
            return all(entry.pod.uid for entry in held if entry.pod.namespace == self.namespace)

        eventually(look, what=f"all allocations of {self.namespace} confirmed")

    def ledger_is_empty(self, *, seconds: float = 30.0) -> None:
        """Wait until no pod of this namespace holds a share."""

        def look() -> bool:
            held = [entry for node in self.gpunodes() for entry in node.allocations]
            return not any(entry.pod.namespace == self.namespace for entry in held)

        eventually(look, seconds=seconds, what=f"the ledger without allocations of {self.namespace}")


def annotation(pod: dict[str, Any], key: str) -> str:
    """Return an annotation's value, or an empty string."""
    return str(pod["metadata"].get("annotations", {}).get(key, ""))


def environment(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    """Return the environment of a container spec, in which a pod that was gated refers to its annotations."""

    def value(entry: dict[str, Any]) -> str:
        path = str(((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", ""))
        key = path.removeprefix("metadata.annotations['").removesuffix("']")
        return str(entry.get("value", annotation(pod, key) if key != path else ""))

    return {entry["name"]: value(entry) for entry in pod["spec"]["containers"][container].get("env", [])}


@dataclass(frozen=True, slots=True)
class Reviews:
    """The number of reviews that reached the webhook's replicas, by their metrics."""

    access: Access

    def count(self) -> int:
        """Return the number of all reviews, regardless of outcome."""
        names = [pod["metadata"]["name"] for pod in gpushare.pods(self.access, "webhook")]
        lines = [line for name in names for line in gpushare.page(self.access, name).splitlines()]
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("gpushare_webhook_reviews_total{")))
