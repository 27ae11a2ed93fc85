"""The policy for agents: an agent writes only about its node, and only the fields that are its responsibility."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract
from lab import access, kubeconfig, lab_errors
from tests import builders
from tests.config.conftest import Cluster

pytestmark = pytest.mark.apiserver

OWN, OTHER = "config-test-own", "config-test-other"
UNBOUND = f"system:serviceaccount:{contract.SYSTEM_NAMESPACE}:{contract.AGENT_SERVICE_ACCOUNT}"


class Agent:
    """A client with a token of the agent's ServiceAccount that is bound to the node OWN."""

    def __init__(self, administrator: access.Access, directory: Path) -> None:
        bound = ("--bound-object-kind=Node", f"--bound-object-name={OWN}", f"--namespace={contract.SYSTEM_NAMESPACE}")
        token = administrator.kubectl("create", "token", contract.AGENT_SERVICE_ACCOUNT, *bound).strip()
        path = directory / "kubeconfig"
        text = kubeconfig.with_token(administrator.server, administrator.ca_file, token, contract.SYSTEM_NAMESPACE)
        kubeconfig.write(path, text)
        self.kubectl = access.Access(
            path, administrator.server, administrator.ca_file, administrator.kubectl_program
        ).kubectl
        self._token, self._server, self._ca_file = token, administrator.server, administrator.ca_file

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a PATCH without kubectl's preceding GET, which the agent has no right to."""
        command = [
            *("curl", "--silent", "--show-error", "--max-time", "30", "--cacert", str(self._ca_file)),
            *("--request", "PATCH", "--header", "Content-Type: application/merge-patch+json"),
            *("--header", "@-", "--data", json.dumps(body), self._server + path),
        ]
        header = f"Authorization: Bearer {self._token}\n"  # not an argument: arguments are visible to all users
        answer = subprocess.run(command, input=header, capture_output=True, text=True, check=True)
        decoded: dict[str, Any] = json.loads(answer.stdout)
        return decoded

    def refused(self, path: str, body: dict[str, Any]) -> str:
        answer = self.patch(path, body)
        assert answer["kind"] == "Status", answer
        return str(answer["message"])


@pytest.fixture(scope="module")
def agent(installed: Cluster, api_server: access.Access, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    for name in (OWN, OTHER):
        installed.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    installed.create(codec.to_document(builders.node(OTHER)))
    holder = Agent(api_server, tmp_path_factory.mktemp("agent"))
    holder.kubectl(
        "create", "--filename=-", "--validate=false", input=json.dumps(codec.to_document(builders.node(OWN)))
    )
    yield holder
    for name in (OWN, OTHER):
        for path in (f"/api/v1/nodes/{name}", f"{contract.GPUNODE_PATH}/{name}"):
            api_server.delete(path)


def test_an_agent_writes_the_status_of_its_own_node(agent: Agent) -> None:
    status = codec.to_status(builders.node(OWN))
    stored = agent.patch(f"{contract.GPUNODE_PATH}/{OWN}/status", {"status": status})
    assert codec.read(stored).gpus == builders.node(OWN).gpus


def test_an_agent_cannot_write_other_nodes(agent: Agent) -> None:
    sentence = agent.refused(f"{contract.GPUNODE_PATH}/{OTHER}/status", {"status": {"config": "x"}})
    assert f"the agent of node {OWN} may not write the Node or GPUNode {OTHER}" in sentence
    capacity = {"status": {"capacity": {contract.RESOURCE_MEMORY: "640Gi"}}}
    assert "may not write the Node or GPUNode" in agent.refused(f"/api/v1/nodes/{OTHER}/status", capacity)
    with pytest.raises(lab_errors.LabError, match="may not write the Node or GPUNode somewhere"):
        agent.kubectl("create", "--filename=-", input=json.dumps(codec.to_document(builders.node("somewhere"))))


def test_an_agent_cannot_write_allocations(agent: Agent, installed: Cluster) -> None:
    entry = codec.to_spec(builders.node())["allocations"]
    assert entry == []
    taken = codec.to_spec(codec.read({**codec.to_document(builders.node(OWN)), "spec": {"allocations": []}}))
    forged = {"spec": {**taken, "cordoned": ["GPU-1"]}, "status": {"config": "renamed"}}
    stored = agent.patch(f"{contract.GPUNODE_PATH}/{OWN}/status", forged)
    assert stored["status"]["config"] == "renamed"
    assert "cordoned" not in stored["spec"]
    assert "cannot patch resource" in agent.refused(f"{contract.GPUNODE_PATH}/{OWN}", forged)


def test_an_agent_changes_only_our_capacity_of_its_node(agent: Agent) -> None:
    path = f"/api/v1/nodes/{OWN}/status"
    stored = agent.patch(path, {"status": {"capacity": {contract.RESOURCE_MEMORY: "640Gi"}}})
    assert stored["status"]["capacity"][contract.RESOURCE_MEMORY] == "640Gi"
    only = "may change only gpushare.io resources"
    assert only in agent.refused(path, {"status": {"capacity": {"nvidia.com/gpu": "8"}}})
    nothing_else = "may change only the capacity in a node's status"
    assert nothing_else in agent.refused(path, {"metadata": {"labels": {"role": "admin"}}})
    ready = {"type": "Ready", "status": "True", "reason": "x", "message": "x"}
    for status in (
        {"conditions": [ready]},
        {"allocatable": {contract.RESOURCE_MEMORY: "1"}},
        {"images": [{"names": ["x"], "sizeBytes": 1}]},
        {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
        {"nodeInfo": {"kubeletVersion": "v9"}},
        {"volumesAttached": [{"name": "x", "devicePath": "y"}]},
        {"runtimeHandlers": [{"name": "x"}]},
    ):
        assert nothing_else in agent.refused(path, {"status": status}), status
    assert nothing_else in agent.refused(path, {"metadata": {"finalizers": ["example.com/x"]}})


def test_an_agent_changes_only_gpu_labels_of_its_node(agent: Agent) -> None:
    path = f"/api/v1/nodes/{OWN}"
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/cuda.driver-version.full": "550.54.15",
        "nvidia.com/mig-1g.10gb.me.engines.copy": "1",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/vgpu.present": "false",
    }
    note = {contract.OWN_LABELS: ",".join(labels)}
    stored = agent.patch(path, {"metadata": {"labels": labels, "annotations": note}})
    assert stored["kind"] == "Node", stored.get("message")
    assert labels.items() <= stored["metadata"]["labels"].items()
    taken = agent.patch(path, {"metadata": {"labels": {"nvidia.com/mps.capable": None}}})
    assert "nvidia.com/mps.capable" not in taken["metadata"]["labels"]
    no_others = "may change only node labels that describe GPUs"
    for key in (
        *("role", "nvidia.com/gpu.deploy.dcgm", "nvidia.com/gpu.present", "nvidia.com/mig.config"),
        *(contract.NODE_CONFIG_LABEL, contract.NVIDIA_CONFIG_LABEL, "node-role.kubernetes.io/control-plane"),
    ):
        assert no_others in agent.refused(path, {"metadata": {"labels": {key: "x"}}})
    of_annotations = "may change only the node annotation gpushare.io/labels"
    assert of_annotations in agent.refused(path, {"metadata": {"annotations": {"other": "x"}}})
    taint = {"key": "k", "effect": "NoSchedule"}
    only_labels = "may change only labels and annotations of its node"
    assert only_labels in agent.refused(path, {"spec": {"taints": [taint]}})
    assert only_labels in agent.refused(path, {"spec": {"unschedulable": True}})
    assert "may not write the Node or GPUNode" in agent.refused(
        f"/api/v1/nodes/{OTHER}", {"metadata": {"labels": labels}}
    )


def test_an_agent_removes_only_the_startup_taint_of_its_node(agent: Agent, installed: Cluster) -> None:
    path, only = f"/api/v1/nodes/{OWN}", "remove its start-up taint"
    other = {"key": "team", "value": "red", "effect": "NoSchedule"}
    for key in contract.STARTUP_TAINTS:
        tainted = [other, {"key": key, "effect": "NoSchedule"}]
        installed.administrator.patch(path, {"spec": {"taints": tainted}})
        assert only in agent.refused(path, {"spec": {"taints": None}})
        assert only in agent.refused(path, {"spec": {"taints": [{**other, "value": "blue"}]}})
        assert agent.patch(path, {"spec": {"taints": [other]}})["spec"]["taints"] == [other]
        assert only in agent.refused(path, {"spec": {"taints": tainted}})
    installed.administrator.patch(path, {"spec": {"taints": None}})


def test_a_token_without_a_node_writes_nothing(installed: Cluster, agent: Agent) -> None:
    sentence = installed.refused(codec.to_document(builders.node("somewhere")), user=UNBOUND)
    assert "this token of gpushare-agent is not bound to a node" in sentence
