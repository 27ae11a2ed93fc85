"""An agent that changes the modes of its GPUs by label and ConfigMap of a real API server, without losing a pod."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from lab import access
from tests import builders
from tests.deviceplugin import agent_process, simulated
from tests.deviceplugin import simulated_kubelet as kubelets
from tests.deviceplugin.api_server_node import Cluster, installed

__all__ = ["installed"]
pytestmark = pytest.mark.apiserver

GPU = "nvidia.com/gpu"
CONFIGS = {
    "default": "version: v1\nsharing: {fractional: {resources: [{name: nvidia.com/gpu}]}}\n",
    "exclusive": "version: v1\n",
    "sliced": "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
    "mixed": """
version: v1
sharing:
  timeSlicing: {resources: [{name: nvidia.com/gpu, rename: nvidia.com/slice, replicas: 3, devices: [0]}]}
  fractional: {resources: [{name: nvidia.com/gpu, devices: [1, 2]}]}
""",
    "mig": """
version: v1
mig: [{devices: [1], mig-enabled: true, mig-devices: {3g.20gb: 2}}, {devices: [0, 2, 3], mig-enabled: false}]
""",
    "clients": """
version: v1
flags: {plugin: {deviceListStrategy: cdi-cri}}
sharing: {fractional: {resources: [{name: nvidia.com/gpu, devices: [0], isolations: [arbiter, mps], smPartitions: 2},
                                   {name: nvidia.com/gpu, devices: [1, 2, 3]}]}}
""",
    "on-demand": """
version: v1
flags: {plugin: {deviceListStrategy: cdi-cri}}
sharing: {fractional: {resources: [{name: nvidia.com/gpu, isolations: [arbiter, mig]}]}}
""",
    "clients-on-demand": """
version: v1
flags: {plugin: {deviceListStrategy: cdi-cri}}
sharing: {fractional: {resources: [{name: nvidia.com/gpu, isolations: [arbiter, mps, mig]}]}}
""",
    "broken": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}\n",
}


class Node(Cluster):
    """A node with an agent, a simulated kubelet, and an administrator who labels it."""

    def __init__(self, administrator: access.Access, name: str, kubelet: kubelets.Kubelet, gpus: Path) -> None:
        super().__init__(administrator, name)
        self.kubelet = kubelet
        self.gpus = gpus
        self.uuids = simulated.uuids(gpus)

    async def label(self, config: str | None) -> None:
        labels = {contract.NODE_CONFIG_LABEL: config}
        await self.patch(f"/api/v1/nodes/{self.node}", {"metadata": {"labels": labels}})

    async def gpunode(self) -> dict[str, Any]:
        """Return the GPUNode, or an empty one."""
        gpunode = await asyncio.to_thread(self.administrator.find, f"{contract.GPUNODE_PATH}/{self.node}")
        return gpunode or {"metadata": {"name": self.node}}

    async def modes(self) -> list[str]:
        return [str(gpu.mode) for gpu in codec.read(await self.gpunode()).gpus]

    async def condition(self, kind: str) -> tuple[str, str]:
        conditions = {
            condition["type"]: condition for condition in (await self.gpunode()).get("status", {}).get("conditions", [])
        }
        return (conditions[kind]["status"], conditions[kind]["message"]) if kind in conditions else ("", "")

    async def config(self) -> str:
        return codec.read(await self.gpunode()).config

    def healthy(self, resource: str) -> set[str]:
        return {key for key, health in self.kubelet.devices.get(resource, {}).items() if health == "Healthy"}

    def offered(self, resource: str = GPU) -> int:
        return len(self.healthy(resource))

    def starts_are_checked(self) -> bool:
        """Whether the kubelet asks the agent before a container with a share starts."""
        asked = (one for one in reversed(self.kubelet.requests) if one.resource_name == contract.RESOURCE_PERCENT)
        return any(one.options.pre_start_required for one in itertools.islice(asked, 1))

    async def events(self) -> list[str]:
        listed = await asyncio.to_thread(self.administrator.read, "/apis/events.k8s.io/v1/events")
        # Events of other components may have no object name.
        lines = [f"{event['regarding'].get('name')} {event['reason']} {event['note']}" for event in listed["items"]]
        return [line for line in lines if line.startswith(self.node)]


CONFIG_MAPS = f"/api/v1/namespaces/{contract.SYSTEM_NAMESPACE}/configmaps"
CONFIG_MAP = f"{CONFIG_MAPS}/{contract.CONFIG_MAP}"


@pytest.fixture(scope="module")
def configured(installed: access.Access) -> Iterator[access.Access]:
    installed.create(CONFIG_MAPS, {"metadata": {"name": contract.CONFIG_MAP}, "data": CONFIGS})
    yield installed
    installed.delete(CONFIG_MAP)


@pytest.fixture
async def node(configured: access.Access, short_path: Path, gpus: Path) -> AsyncIterator[Node]:
    (short_path / "kubelet").mkdir()
    kubelet = kubelets.Kubelet(short_path / "kubelet")
    await kubelet.start()
    name = f"live-test-{secrets.token_hex(3)}"
    configured.create("/api/v1/nodes", {"metadata": {"name": name}})
    yield Node(configured, name, kubelet, gpus)
    await kubelet.stop()
    for path in (contract.GPUNODE_PATH, "/api/v1/nodes"):
        configured.delete(f"{path}/{name}")


def running(node: Node, directory: Path) -> Any:
    credentials = node.agents_kubeconfig(directory / "kubeconfig")
    return agent_process.running(node.node, directory, kubeconfig=credentials, gpus=node.gpus)


async def test_labels_follow_the_mode_in_force(node: Node, short_path: Path) -> None:
    async def shared(strategy: str, replicas: str) -> bool:
        document = await asyncio.to_thread(node.administrator.read, f"/api/v1/nodes/{node.node}")
        labels = document["metadata"]["labels"]
        return (labels.get(f"{GPU}.sharing-strategy"), labels.get(f"{GPU}.replicas")) == (strategy, replicas)

    await node.label("exclusive")
    async with running(node, short_path):
        await node.until(lambda: shared("none", "1"))
        await node.label("sliced")
        await node.until(lambda: shared("time-slicing", "4"))


async def test_only_unused_gpus_change_and_the_users_of_others_are_named(node: Node, short_path: Path) -> None:
    async def is_mode(*modes: str) -> bool:
        return await node.modes() == list(modes)

    await node.label("exclusive")
    async with running(node, short_path) as agent:
        await node.kubelet.until(lambda: node.offered() == 4)
        await node.until(lambda: is_mode(*["exclusive"] * 4))
        response = await node.kubelet.admit("train", GPU, 1)
        held = response.envs["NVIDIA_VISIBLE_DEVICES"]
        (index,) = [number for number, uuid in enumerate(node.uuids) if uuid == held]

        await node.label("sliced")
        await node.kubelet.until(lambda: node.offered("nvidia.com/gpu.shared") == 12)
        # The pod's GPU keeps its mode and accepts no new pods.
        assert node.healthy(GPU) == {held}
        expected = ["time-slicing"] * 4
        expected[index] = "exclusive"
        await node.until(lambda: is_mode(*expected))
        status, message = await node.condition("ConfigPending")
        assert status == "True"
        assert f"GPU {index} ({held}) is to become time-slicing, 4 × nvidia.com/gpu.shared" in message
        assert "pod ml/train" in message
        assert await node.config() == "sliced"

        # A crash of the agent at this point must lose nothing.
        agent.process.kill()
    async with running(node, short_path):
        await node.kubelet.until(
            lambda: node.offered("nvidia.com/gpu.shared") == 12 and len(node.kubelet.requests) >= 4
        )
        assert node.healthy(GPU) == {held}

        del node.kubelet.pods["train"]
        await node.kubelet.until(lambda: node.offered("nvidia.com/gpu.shared") == 16)
        await node.kubelet.until(lambda: not node.healthy(GPU))

        async def is_done() -> bool:
            return await node.condition("ConfigPending") == ("False", "every GPU is as configured")

        await node.until(is_done)
        replicas = [await node.kubelet.admit(f"small-{number}", "nvidia.com/gpu.shared", 1) for number in range(4)]
        # The replicas are spread over the GPUs.
        assert {replica.envs["NVIDIA_VISIBLE_DEVICES"] for replica in replicas} == set(node.uuids)

        async def is_told() -> bool:
            sentence = "ConfigApplied configuration sliced is in force on every GPU"
            return any(sentence in line for line in await node.events())

        await node.until(is_told)


async def test_an_invalid_configuration_leaves_the_last_valid_one_in_force(node: Node, short_path: Path) -> None:
    async with running(node, short_path):
        await node.kubelet.until(lambda: node.offered(contract.RESOURCE_PERCENT) == 400)
        for name, sentence in (
            ("broken", "replicas must be >= 2"),
            ("unheard-of", "specified config unheard-of does not exist"),
        ):
            await node.label(name)

            async def is_refused(wanted: str = sentence) -> bool:
                status, message = await node.condition("ConfigValid")
                return status == "False" and wanted in message and "default stays in force" in message

            await node.until(is_refused)

            async def is_told(wanted: str = sentence) -> bool:
                return any("ConfigInvalid" in line and wanted in line for line in await node.events())

            await node.until(is_told)
        assert await node.config() == "default"
        assert node.offered(contract.RESOURCE_PERCENT) == 400
        await node.label("exclusive")
        await node.kubelet.until(lambda: node.offered() == 4)

        async def is_valid() -> bool:
            return (await node.condition("ConfigValid"))[0] == "True"

        await node.until(is_valid)


async def test_a_gpu_changes_only_after_its_share_is_released(node: Node, short_path: Path) -> None:
    async with running(node, short_path):
        await node.kubelet.until(lambda: node.offered(contract.RESOURCE_PERCENT) == 400)

        async def is_written() -> bool:
            return await node.modes() == ["fractional"] * 4

        await node.until(is_written)
        entry = builders.allocation("a1", node.uuids[2], reserved_until=2e9)
        await node.place(lambda stored: ledger.reserve(stored, entry))
        await node.label("exclusive")
        await node.kubelet.until(lambda: node.offered() == 3)

        async def is_shown() -> bool:
            gpus = codec.read(await node.gpunode()).gpus
            shown = [(str(gpu.mode), gpu.cordoned) for gpu in gpus]
            return shown == [("exclusive", False), ("exclusive", False), ("fractional", True), ("exclusive", False)]

        await node.until(is_shown)
        await node.place(lambda stored: ledger.release(stored, ["a1"]))
        await node.kubelet.until(lambda: node.offered() == 4)


async def test_changed_content_applies_and_each_gpu_has_its_own_mode(
    node: Node, short_path: Path, configured: access.Access
) -> None:
    async def is_mode(*modes: str) -> bool:
        return await node.modes() == list(modes)

    await node.label("mixed")
    async with running(node, short_path) as agent:
        await node.until(lambda: is_mode("time-slicing", "fractional", "fractional", "exclusive"))
        # Each resource has its own ListAndWatch stream.
        wanted = {"nvidia.com/slice": 3, GPU: 1, contract.RESOURCE_PERCENT: 200}
        await node.kubelet.until(lambda: all(node.offered(name) == count for name, count in wanted.items()))
        # Not every machine that runs this reports NUMA nodes; if it does, they must be those of advertised devices.
        assert set(node.kubelet.numa) <= {device for devices in node.kubelet.devices.values() for device in devices}

        async def product() -> bool:
            document = await asyncio.to_thread(node.administrator.read, f"/api/v1/nodes/{node.node}")
            labels = document["metadata"].get("labels", {})
            return "nvidia.com/gpu.product" in labels and labels.get("nvidia.com/gpu.count") == "4"

        await node.until(product)

        changed = {**CONFIGS, "mixed": CONFIGS["mixed"].replace("replicas: 3", "replicas: 5") + "surprise: 1\n"}
        await node.patch(CONFIG_MAP, {"data": changed})
        await node.kubelet.until(lambda: node.offered("nvidia.com/slice") == 5)

        async def is_warned() -> bool:  # a single warning, although the configuration was read twice
            return (await node.condition("ConfigValid"))[1].count("surprise") == 1

        await node.until(is_warned)
        assert agent.process.poll() is None
    await node.patch(CONFIG_MAP, {"data": CONFIGS})


async def test_a_failing_gpu_is_reported_to_kubelet_ledger_pods_and_metrics(node: Node, short_path: Path) -> None:
    part = "nvidia.com/mig-3g.20gb"
    await node.label("mig")
    async with running(node, short_path) as agent:
        await node.kubelet.until(lambda: node.offered() == 3 and node.offered(part) == 2)
        namespace = f"ml-{secrets.token_hex(3)}"
        node.administrator.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        node.administrator.ensure_default_service_account(namespace)
        node.kubelet.namespace = namespace
        await node.kubelet.admit("train", part, 1)
        spec = {"nodeName": node.node, "containers": [{"name": "main", "image": "x"}]}
        metadata = {"name": "train", "namespace": namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        node.administrator.create(f"/api/v1/namespaces/{namespace}/pods", pod)

        await simulated.change("fail", node.gpus, "1", "xid=94")
        await node.kubelet.until(lambda: node.offered(part) == 0)  # all MIG devices of this GPU, but no other GPU
        assert node.offered() == 3

        async def is_ill() -> bool:
            return [gpu.healthy for gpu in codec.read(await node.gpunode()).gpus] == [True, False, True, True]

        await node.until(is_ill)

        async def are_told() -> bool:
            listed = await asyncio.to_thread(node.administrator.read, "/apis/events.k8s.io/v1/events")
            lines = [
                f"{event['regarding'].get('kind')} {event['regarding'].get('name')} {event['reason']} {event['note']}"
                for event in listed["items"]
            ]
            sentence = f"GpuUnhealthy GPU 1 ({node.uuids[1]}) is not healthy: XID 94 happened"
            return all(
                any(line.startswith(f"{who} {sentence}") for line in lines)
                for who in ("Pod train", f"GPUNode {node.node}")
            )

        await node.until(are_told)
        text = (await agent.get("/metrics"))[1]
        healthy = {
            line.split('index="')[1][0]: line[-3:]
            for line in text.splitlines()
            if line.startswith("gpushare_gpu_healthy{")
        }
        assert healthy == {"0": "1.0", "1": "0.0", "2": "1.0", "3": "1.0"}


async def test_metrics_agree_with_the_plugin(node: Node, short_path: Path) -> None:
    async with running(node, short_path) as agent:

        async def is_written() -> bool:
            return await node.modes() == ["fractional"] * 4

        await node.until(is_written)
        entry = builders.allocation("a1", node.uuids[2], request=25, memory_gib=10, reserved_until=2e9)
        await node.place(lambda stored: ledger.reserve(stored, entry))

        async def allocated(name: str) -> dict[str, float]:
            lines = [line for line in (await agent.get("/metrics"))[1].splitlines() if line.startswith(f"{name}{{")]
            return {line.split('gpu="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in lines}

        async def is_told() -> bool:
            return (await allocated("gpushare_gpu_allocated_compute_ratio"))[node.uuids[2]] == 0.25

        await node.until(is_told)
        path = short_path / "nodes.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [await node.gpunode()]}))
        plugin = (sys.executable, "-m", "kubectl_gpushare", "top", "gpus", f"--from={path}", "--output=json")
        process = await asyncio.create_subprocess_exec(*plugin, stdout=asyncio.subprocess.PIPE)
        shown = {item["uuid"]: item for item in json.loads((await process.communicate())[0])["items"]}
        assert set(shown) == set(node.uuids)
        for metric, kind, amount in (
            ("gpushare_gpu_allocated_memory_bytes", "memory", "allocatedBytes"),
            ("gpushare_gpu_memory_bytes", "memory", "totalBytes"),
        ):
            assert await allocated(metric) == {uuid: gpu[kind][amount] for uuid, gpu in shown.items()}
        parts = {uuid: gpu["compute"]["allocatedPercent"] / 100 for uuid, gpu in shown.items()}
        assert await allocated("gpushare_gpu_allocated_compute_ratio") == parts
