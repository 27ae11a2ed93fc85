"""Karpenter with its KWOK provider, whose nodes are objects without a machine, and the agents that such nodes lack."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deviceplugin.report import node_writers
from gpushare import codec, contract
from lab import access, addresses, integration, lab_errors
from tests import builders
from tests.autoscaler import NODES

API: Final = "/apis/karpenter.sh/v1"
POOL: Final = "shares"
GPUS, MEMORY_GIB, MODEL = 4, 80, "NVIDIA A100-SXM4-80GB"
PRODUCT: Final = "NVIDIA-A100-SXM4-80GB"
NOT_READY: Final = "node.kubernetes.io/not-ready"  # from the API server, for the node controller to remove
STARTUP_TAINT: Final = {"key": contract.STARTUP_TAINTS[0], "effect": "NoSchedule"}
# Times are short, so that a test sees empty nodes removed.
_POOL: Final = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": POOL},
    "spec": {
        "template": {
            "metadata": {"labels": {"nvidia.com/gpu.product": PRODUCT}},
            "spec": {
                "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": POOL},
                "startupTaints": [STARTUP_TAINT],
                "expireAfter": "Never",
            },
        },
        "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "2s"},
    },
}
_CLASS: Final = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": POOL}}


@contextlib.contextmanager
def running(administrator: access.Access, directory: Path) -> Iterator[Path]:
    """Run Karpenter with a NodePool of nodes with four GPUs; yield its log."""
    source = integration.source("karpenter")
    for folder in ("pkg/apis/crds", "kwok/apis/crds"):
        administrator.kubectl("apply", "--server-side", f"--filename={source / folder}")
    for name in ("nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "kwoknodeclasses.karpenter.kwok.sh"):
        administrator.wait_until_established(name)
    types = directory / "instance-types.json"
    types.write_text(json.dumps([_instance_type()]))
    address = "127.0.0.1"
    metrics, health = addresses.free_ports(address, (28080, 28081))
    command = [
        str(integration.ensure("karpenter")),
        *(f"--instance-types-file-path={types}", f"--metrics-port={metrics}", f"--health-probe-port={health}"),
        *("--disable-leader-election=true", "--batch-idle-duration=300ms"),
    ]
    environment = {**os.environ, "KUBECONFIG": str(administrator.kubeconfig), "SYSTEM_NAMESPACE": "kube-system"}
    log = directory / "karpenter.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=stream, stderr=stream)
    try:
        for document in (_CLASS, _POOL):
            administrator.kubectl("apply", "--filename=-", input=json.dumps(document))
        yield log
    finally:
        process.terminate()
        process.wait(30)


def _instance_type() -> dict[str, Any]:
    """Return nodes that Karpenter may start. On a cloud, a NodeOverlay adds gpushare's resource."""
    requirements = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "zone-a"}
    offering = {
        "Price": 10.0,
        "Requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in requirements.items()],
    }
    amounts = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "100Gi"}
    return {
        "name": "quad",
        "offerings": [offering],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {**amounts, contract.RESOURCE_PERCENT: str(100 * GPUS)},
    }


@dataclasses.dataclass
class Agents:
    """Does what kubelet, agent and node controller do for the nodes that Karpenter starts."""

    administrator: access.Access
    booted: list[str] = dataclasses.field(default_factory=list)

    def step(self) -> None:
        """Boot new nodes, and remove what is left of those that are gone."""
        nodes = {item["metadata"]["name"]: item for item in self.administrator.read(NODES)["items"]}
        for name, node in nodes.items():
            if name not in self.booted and node["metadata"]["labels"].get("karpenter.sh/nodepool") == POOL:
                self._boot(node)
                self.booted.append(name)
            if name in self.booted:
                self._untaint(node)
        for gpunode in self.administrator.read(contract.GPUNODE_PATH)["items"]:
            if gpunode["metadata"]["name"] not in nodes:
                self.administrator.delete(f"{contract.GPUNODE_PATH}/{gpunode['metadata']['name']}")

    def nodes(self) -> list[str]:
        """Return the nodes that there are."""
        return sorted(item["metadata"]["name"] for item in self.administrator.read(NODES)["items"])

    def _boot(self, node: dict[str, Any]) -> None:
        name = node["metadata"]["name"]
        amounts = {
            **node["status"]["allocatable"],
            contract.RESOURCE_PERCENT: str(100 * GPUS),
            contract.RESOURCE_MEMORY: f"{MEMORY_GIB * GPUS}Gi",
            contract.RESOURCE_IDLE: str(contract.IDLE_SHARES_PER_GPU * GPUS),
        }
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        status = {"conditions": ready, "allocatable": amounts, "capacity": amounts}
        self.administrator.patch(f"{NODES}/{name}/status", {"status": status})
        made = builders.node(name, gpus=GPUS, memory_gib=MEMORY_GIB, model=MODEL)
        bare = {"apiVersion": contract.API_VERSION, "kind": contract.GPUNODE_KIND, "metadata": {"name": name}}
        self.administrator.create(contract.GPUNODE_PATH, bare)
        self.administrator.patch(f"{contract.GPUNODE_PATH}/{name}/status", {"status": codec.to_status(made)})

    def _untaint(self, node: dict[str, Any]) -> None:
        """Remove the start-up taint, which Karpenter writes again when it registers the node, and that of a node that
        is not ready.
        """
        taints = [taint for taint in node["spec"].get("taints", []) if taint["key"] != NOT_READY]
        patch = node_writers.taint_patch(taints)
        left = patch[1]["value"] if patch else taints
        if left != node["spec"].get("taints", []):
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            with contextlib.suppress(lab_errors.LabError):  # another client has changed the node meanwhile
                self.administrator.patch(
                    f"{NODES}/{node['metadata']['name']}", {"metadata": version, "spec": {"taints": left}}
                )
