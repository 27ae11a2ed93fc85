"""The lab's node changes through all modes by its label, and the pods that run in each of them survive."""

from __future__ import annotations

import datetime
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpushare import codec, contract
from lab import access, image, lab_layout
from tests.deviceplugin import simulated
from tests.e2e.observation import Observer

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]  # a failed setup is retried after half a minute

GPU = "nvidia.com/gpu"
CUT_SECONDS = 60  # it takes a few; other tests may load the machine
CONFIGS = {
    "default": "version: v1\nsharing: {fractional: {resources: [{name: nvidia.com/gpu}]}}\n",
    "exclusive": "version: v1\n",
    "time-slicing": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}]}}\n",
    "mps": "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n",
    "mig": """
version: v1
flags: {migStrategy: mixed}
mig:
- devices: all
  mig-enabled: true
  mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
""",
    "mounts": "version: v1\nflags: {plugin: {deviceListStrategy: volume-mounts}}\n",
    "cdi": "version: v1\nflags: {plugin: {deviceListStrategy: cdi-annotations}}\n",
    "cdi-shares": (
        "version: v1\nflags: {plugin: {deviceListStrategy: cdi-annotations}}\n"
        "sharing: {fractional: {resources: [{name: nvidia.com/gpu}]}}\n"
    ),
    "mig-shares": (
        "version: v1\nflags: {plugin: {deviceListStrategy: cdi-annotations}}\n"
        "sharing: {fractional: {resources: [{name: nvidia.com/gpu, isolations: [arbiter, mig]}]}}\n"
    ),
    "mig-off": "version: v1\nmig: [{devices: all, mig-enabled: false}]\n",
}


class Node:
    """The lab's node, as an administrator sees it."""

    def __init__(self, lab: access.Access, where: lab_layout.Layout, namespace: str) -> None:
        self.lab, self.where, self.namespace = lab, where, namespace
        self.name = where.nodes[0].name
        self.uuids = simulated.uuids(where.gpus(where.nodes[0]))

    def label(self, config: str) -> None:
        self.lab.patch(f"/api/v1/nodes/{self.name}", {"metadata": {"labels": {contract.NODE_CONFIG_LABEL: config}}})

    def amount(self, resource: str, amounts: str = "allocatable") -> int:
        return int(self.lab.read(f"/api/v1/nodes/{self.name}")["status"][amounts].get(resource, 0))

    def labels(self) -> dict[str, str]:
        labels = self.lab.read(f"/api/v1/nodes/{self.name}")["metadata"]["labels"]
        return {key: value for key, value in labels.items() if key.startswith("nvidia.com/")}

    def condition(self, kind: str) -> tuple[str, str]:
        document = self.lab.read(f"{contract.GPUNODE_PATH}/{self.name}")
        (entry,) = [condition for condition in codec.read(document).conditions if condition.type == kind]
        return entry.status, entry.message

    def run(self, name: str, resource: str, count: int = 1) -> None:
        self._create(name, {"limits": {resource: count}}, {})

    def share(self, name: str, request: str, *, last: str = "sleep 3600", **more: str) -> None:
        annotations = {contract.REQUEST: request, **{contract.PREFIX + key: more[key] for key in more}}
        self._create(name, {}, annotations, last)

    def _create(
        self, name: str, resources: dict[str, Any], annotations: dict[str, str], last: str = "sleep 3600"
    ) -> None:
        command = ["sh", "-c", f"env; gpushare-probe; echo end; {last}"]
        container = {"name": "main", "image": image.SAMPLE, "command": command, "resources": resources}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"}
        metadata = {"name": name, "namespace": self.namespace, "annotations": annotations}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.lab.create(f"/api/v1/namespaces/{self.namespace}/pods", manifest)

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.lab.read(f"/api/v1/namespaces/{self.namespace}/pods/{name}")["status"])

    def phase(self, name: str) -> str:
        status = self.status(name)
        restarts = [container["restartCount"] for container in status.get("containerStatuses", ())]
        return f"{status.get('phase', '')}/{status.get('reason', '')}/{restarts[0] if restarts else ''}"

    def lines(self, name: str) -> list[str]:
        """Return the output of a running pod: the environment of its container, and the devices that CUDA sees."""
        eventually(lambda: self.phase(name).startswith(("Running", "Failed")))
        assert self.phase(name) == "Running//0", self.status(name)
        eventually(lambda: "end" in self._logs(name))
        return self._logs(name)

    def reason(self, name: str) -> str:
        """Return why a pod waits."""
        metadata = self.lab.read(f"/api/v1/namespaces/{self.namespace}/pods/{name}")["metadata"]
        return str(metadata["annotations"].get(contract.REASON, ""))

    def _logs(self, name: str) -> list[str]:
        return Observer(self.lab, self.namespace).logs(name).splitlines()

    def environment(self, name: str) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.lines(name) if "=" in line)

    def seen(self, name: str) -> list[str]:
        """Return the devices that CUDA sees in a pod, by UUID without its prefix."""
        words = (word for line in self.lines(name) if line.startswith("device ") for word in line.split())
        return [word.removeprefix("GPU-") for word in words if word.startswith("GPU-")]

    def start_seconds(self, name: str) -> float:
        """Return how many seconds passed from a pod's binding to the start of its container."""
        status = self.lab.read(f"/api/v1/namespaces/{self.namespace}/pods/{name}")["status"]
        (bound,) = [entry["lastTransitionTime"] for entry in status["conditions"] if entry["type"] == "PodScheduled"]
        started = status["containerStatuses"][0]["state"]["running"]["startedAt"]
        return (datetime.datetime.fromisoformat(started) - datetime.datetime.fromisoformat(bound)).total_seconds()

    def audit(self) -> Any:
        run = Observer(self.lab, self.namespace).plugin_run("audit", "--output=json", check=False)
        return json.loads(run.stdout)

    def end(self, *names: str) -> None:
        for name in names:
            self.lab.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")


# For a minute and a half after a kubelet's start, in an earlier test, allocatable is larger than the capacity.
def eventually(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


@pytest.fixture(scope="module")
def node(installed: lab_layout.Layout, lab: access.Access) -> Iterator[Node]:
    metadata = {"name": contract.CONFIG_MAP, "namespace": contract.SYSTEM_NAMESPACE}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": CONFIGS}
    lab.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input=json.dumps(document))
    with lab.namespace("modes") as namespace:
        made = Node(lab, installed, namespace)
        yield made
        lab.patch(f"/api/v1/nodes/{made.name}", {"metadata": {"labels": {contract.NODE_CONFIG_LABEL: None}}})


def test_modes_change_and_running_pods_survive(node: Node) -> None:
    node.label("default")
    eventually(lambda: node.amount(contract.RESOURCE_PERCENT) >= 400)
    node.share("half", "0.5")
    (shared,) = node.seen("half")

    node.label("exclusive")
    eventually(lambda: node.amount(GPU) == 3)
    # The pod's devices, and those that another test's pods had: for half a minute after Allocate.
    eventually(lambda: 50 <= node.amount(contract.RESOURCE_PERCENT) < 400)
    assert f"pod {node.namespace}/half" in node.condition("ConfigPending")[1]
    node.end("half")
    eventually(lambda: node.amount(GPU) == 4)
    assert f"GPU-{shared}" in node.uuids
    node.run("whole", GPU, 2)
    whole = node.environment("whole")["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(set(whole)) == 2
    assert set(whole) <= set(node.uuids)
    assert {f"GPU-{uuid}" for uuid in node.seen("whole")} == set(whole)

    node.label("time-slicing")
    # Two GPUs are unused and become three replicas each; the other two stay whole for the pod that has them.
    eventually(lambda: node.amount(GPU) == 2 * 3 + 2)
    status, message = node.condition("ConfigPending")
    assert status == "True"
    assert f"pod {node.namespace}/whole" in message
    for number in range(6):
        node.run(f"slice-{number}", GPU)
    slices = [node.environment(f"slice-{number}")["NVIDIA_VISIBLE_DEVICES"] for number in range(6)]
    assert {uuid: slices.count(uuid) for uuid in set(slices)} == dict.fromkeys(set(node.uuids) - set(whole), 3)
    node.end("whole")
    eventually(lambda: node.amount(GPU) == 12)
    eventually(lambda: node.labels().get("nvidia.com/gpu.replicas") == "3")
    assert node.labels()["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-SHARED"
    assert all(node.phase(f"slice-{number}") == "Running//0" for number in range(6))

    node.label("mps")
    eventually(lambda: node.amount(GPU) == 6 + 2 * 2)
    node.end(*(f"slice-{number}" for number in range(5)))
    eventually(lambda: node.amount(GPU) == 3 * 2 + 1)  # a pod still has a replica of one GPU
    node.end("slice-5")
    eventually(lambda: node.amount(GPU) == 8)
    node.run("client", GPU)
    client = node.environment("client")
    assert client["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    assert client["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert client["NVIDIA_VISIBLE_DEVICES"] in node.uuids
    assert [f"GPU-{uuid}" for uuid in node.seen("client")] == [client["NVIDIA_VISIBLE_DEVICES"]]

    node.label("mig")
    parts = ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb")  # each resource has its own ListAndWatch stream
    eventually(lambda: [node.amount(part) for part in parts] == [6, 3])
    assert f"pod {node.namespace}/client" in node.condition("ConfigPending")[1]
    node.run("part", "nvidia.com/mig-2g.10gb")
    assert [f"MIG-{uuid}" for uuid in node.seen("part")] == [node.environment("part")["NVIDIA_VISIBLE_DEVICES"]]
    assert node.phase("client") == "Running//0"
    node.end("client")
    eventually(lambda: node.amount("nvidia.com/mig-1g.5gb") == 8)

    node.label("mig-off")
    eventually(lambda: node.amount(GPU) == 3)
    eventually(lambda: f"pod {node.namespace}/part" in node.condition("ConfigPending")[1])
    assert node.amount("nvidia.com/mig-2g.10gb") == 1
    assert node.phase("part") == "Running//0"
    node.end("part")
    eventually(lambda: node.amount(GPU) == 4)
    # Half a minute after the last share could be given; until then the kubelet lists its devices as unhealthy.
    eventually(lambda: node.amount(contract.RESOURCE_PERCENT, "capacity") == 0)

    node.label("default")
    eventually(lambda: node.amount(contract.RESOURCE_PERCENT) == 400)
    node.share("quarter", "0.25")
    assert len(node.seen("quarter")) == 1
    eventually(lambda: node.amount(GPU) == 0)
    eventually(lambda: node.condition("ConfigPending") == ("False", "every GPU is as configured"))
    node.end("quarter")


@pytest.mark.parametrize("strategy", ["mounts", "cdi"])
def test_devices_are_injected_in_every_configured_way(node: Node, strategy: str) -> None:
    node.label(strategy)
    eventually(lambda: node.amount(GPU) == 4)
    eventually(lambda: f"{strategy} is in force" in node.condition("ConfigValid")[1])
    node.run(strategy, GPU, 2)
    seen = node.seen(strategy)
    assert len(set(seen)) == 2
    assert {f"GPU-{uuid}" for uuid in seen} <= set(node.uuids)
    expected = {"mounts": "/var/run/nvidia-container-devices", "cdi": "void"}
    assert node.environment(strategy)["NVIDIA_VISIBLE_DEVICES"] == expected[strategy]
    # Unless the agent sees that the pod has GPUs, they count as in use for half a minute after they were given.
    node.label("default")
    eventually(lambda: f"pod {node.namespace}/{strategy}" in node.condition("ConfigPending")[1])
    node.end(strategy)
    eventually(lambda: node.amount(GPU) == 0)  # or the next pod would come when the kubelet has no healthy device


def test_a_share_gets_its_gpu_through_cdi_once_its_container_is_known(node: Node) -> None:
    node.label("cdi-shares")
    eventually(lambda: node.amount(contract.RESOURCE_PERCENT) == 400)
    eventually(lambda: "cdi-shares is in force" in node.condition("ConfigValid")[1])
    node.share("described", "0.5")
    node.share("other", "0.75")
    seen = {name: node.seen(name) for name in ("described", "other")}
    for name, uuids in seen.items():
        pod = node.lab.read(f"/api/v1/namespaces/{node.namespace}/pods/{name}")
        assert [f"GPU-{uuid}" for uuid in uuids] == [pod["metadata"]["annotations"][contract.GPU_UUIDS]]
        # The container does not get its GPU through the variable that the webhook wrote.
        assert node.environment(name)["NVIDIA_VISIBLE_DEVICES"] == "void"
    # All containers have their devices: the agent has found none missing.
    assert node.condition(contract.CONDITION_DEVICES_INJECTED)[0] != "False"
    node.end(*seen)


def test_a_gated_pod_gets_a_mig_device_that_is_cut_for_it_and_sees_no_other(node: Node) -> None:
    node.label("cdi-shares")
    eventually(lambda: "cdi-shares is in force" in node.condition("ConfigValid")[1])
    names = ("tenant", "neighbour")
    for name in names:
        node.share(name, "0.1", memory="4Gi", isolation="mig", last="gpushare-probe --fill --hold 3600 > /dev/null")
        eventually(lambda name=name: "no shares with isolation mig" in node.reason(name))  # type: ignore[misc]
    node.label("mig-shares")
    devices = {}
    for name in names:
        (devices[name],) = [line for line in node.lines(name) if line.startswith("device ")]
        assert "MIG 1g.5gb" in devices[name], devices
    assert devices["tenant"] != devices["neighbour"]
    seconds = [node.start_seconds(name) for name in names]
    logging.getLogger(__name__).info("seconds from binding to the start of the container: %s", seconds)
    assert max(seconds) < CUT_SECONDS

    expected = {name: ("InForce", int(device.split("total ")[1].split()[0])) for name, device in devices.items()}

    def is_audited() -> bool:
        audit = node.audit()
        items = {item["pod"]["name"]: (item["limits"], item["enforced"]["memoryBytes"]) for item in audit["items"]}
        return items == expected and audit["processes"] == []

    eventually(is_audited)
    gpus = codec.read(node.lab.read(f"{contract.GPUNODE_PATH}/{node.name}")).gpus
    assert sorted(gpu.mig_profiles for gpu in gpus) == [(), (), (), ("1g.5gb", "1g.5gb")]
    node.end(*names)
    node.share("whole", "1", uuid=next(gpu.uuid for gpu in gpus if gpu.mig_profiles))
    (device,) = [line for line in node.lines("whole") if line.startswith("device ")]
    assert "MIG" not in device, device
    node.end("whole")
