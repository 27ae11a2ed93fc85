"""A pod that bypasses the library is reported on a real node: by condition, Event, metric and /audit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import codec, contract
from kubectl_gpushare.commands.audit import NOT_IN_FORCE
from lab import access, gpushare, image, lab_layout
from tests.deviceplugin.test_lab_modes import eventually

pytestmark = pytest.mark.lab

HONEST = "gpushare-probe --allocate 1GiB --hold 3600"
# The container's own loader does not read the preload file.
OWN_LOADER = (
    "sed s,/etc/ld.so.preload,/etc/no.so.preload, /lib64/ld-linux-x86-64.so.2 > /tmp/ld.so && chmod +x /tmp/ld.so "
    "&& exec /tmp/ld.so /usr/bin/gpushare-probe --allocate 1GiB --hold 3600"
)


class Node:
    """The lab's node, and a namespace on it."""

    def __init__(self, lab: access.Access, where: lab_layout.Layout, namespace: str) -> None:
        self.lab, self.namespace = lab, namespace
        self.name = where.nodes[0].name
        self._where = where.nodes[0]

    def run(self, name: str, command: str) -> None:
        container = {"name": "main", "image": image.SAMPLE, "command": ["sh", "-c", command]}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"}
        annotations = {contract.REQUEST: "0.25", contract.MEMORY: "2Gi"}
        metadata = {"name": name, "namespace": self.namespace, "annotations": annotations}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.lab.create(f"/api/v1/namespaces/{self.namespace}/pods", manifest)

    def end(self, name: str) -> None:
        self.lab.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def condition(self) -> tuple[str, str]:
        document = self.lab.read(f"{contract.GPUNODE_PATH}/{self.name}")
        conditions = [
            condition
            for condition in codec.read(document).conditions
            if condition.type == contract.CONDITION_LIMITS_IN_FORCE
        ]
        return (conditions[0].status, conditions[0].message) if conditions else ("", "")

    def asked(self, path: str) -> str:
        return gpushare.agent_page(self.lab, self._where, path)

    def shares(self) -> dict[str, Any]:
        """Return the audit's shares, by pod."""
        entries = json.loads(self.asked(contract.AUDIT_PATH))["shares"]
        return {entry["pod"]: entry for entry in entries if entry["namespace"] == self.namespace}

    def process(self, pod: str) -> dict[str, Any] | None:
        """Return a pod's process from the audit."""
        gpus = json.loads(self.asked(contract.AUDIT_PATH))["gpus"]
        return next((process for gpu in gpus for process in gpu["processes"] if process["pod"] == pod), None)

    def verb(self) -> tuple[int, str]:
        """Return exit code and output of `kubectl gpushare audit`."""
        command = [sys.executable, "-m", "kubectl_gpushare", "audit", f"--kubeconfig={self.lab.kubeconfig}"]
        where = {**os.environ, "KUBECTL_PATH": str(self.lab.kubectl_program)}
        done = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def events(self, kind: str, name: str) -> list[str]:
        """Return the notes of the Events about an object."""
        listed = self.lab.read("/apis/events.k8s.io/v1/events")["items"]
        about = ((event["regarding"], event) for event in listed if event["reason"] == contract.EVENT_UNLIMITED)
        return [event["note"] for regarding, event in about if (regarding["kind"], regarding["name"]) == (kind, name)]


@pytest.fixture
def node(installed: lab_layout.Layout, lab: access.Access) -> Iterator[Node]:
    with lab.namespace("audit") as namespace:
        yield Node(lab, installed, namespace)


def test_a_process_that_bypasses_the_library_is_reported(node: Node) -> None:
    node.run("honest", HONEST)
    eventually(lambda: (node.process("honest") or {}).get("state") == "limited")
    # The program is limited from its context on, and allocates after that.
    eventually(lambda: node.shares().get("honest", {}).get("chargedBytes") == 1 << 30)
    eventually(lambda: node.condition()[0] == "True")
    share = node.shares()["honest"]
    assert (share["inForce"], share["withLibrary"], share["enforcedBytes"]) == (True, 1, 2 << 30)
    assert share["chargedBytes"] == 1 << 30

    node.run("sneaky", OWN_LOADER)
    eventually(lambda: (node.process("sneaky") or {}).get("state") == "unlimited")
    suspect = node.process("sneaky")
    assert suspect is not None
    assert (suspect["container"], suspect["usedBytes"], suspect["chargedBytes"]) == ("main", 1 << 30, 0)
    assert "the library is not loaded" in suspect["reason"]
    shares = node.shares()
    assert (shares["sneaky"]["inForce"], shares["sneaky"]["processes"]) == (False, 0)
    assert shares["honest"]["inForce"]
    eventually(lambda: node.condition()[0] == "False")
    assert f"of the pod {node.namespace}/sneaky runs without limits on GPU" in node.condition()[1]
    eventually(lambda: bool(node.events("Pod", "sneaky")))
    eventually(lambda: any(f"{node.namespace}/sneaky" in note for note in node.events("GPUNode", node.name)))
    assert node.events("Pod", "honest") == []
    code, output = node.verb()
    assert code == NOT_IN_FORCE
    assert "sneaky" in output, output
    metrics = node.asked("/metrics").splitlines()
    unlimited = [line for line in metrics if line.startswith("gpushare_gpu_unlimited_processes{")]
    assert sum(float(line.split()[-1]) for line in unlimited) == 1
    process = node.process("honest")
    assert process is not None
    assert process["state"] == "limited"

    node.end("sneaky")
    eventually(lambda: node.condition()[0] == "True")
    node.end("honest")
