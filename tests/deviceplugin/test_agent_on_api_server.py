"""The agent on a real API server, with the permissions of its manifests: the GPUNode and the Node's capacity."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare import codec, contract, ledger
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.gpunode import Resize
from tests import builders
from tests.deviceplugin import agent_process, simulated, simulated_kubelet
from tests.deviceplugin.api_server_node import Cluster, cluster, installed

__all__ = ["cluster", "installed"]

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def agent(cluster: Cluster, short_path: Path, gpus: Path) -> AsyncIterator[agent_process.Agent]:
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    async with agent_process.running(cluster.node, short_path, kubeconfig=credentials, gpus=gpus) as made:
        yield made


async def test_the_agent_creates_the_gpunode_with_its_gpus(
    cluster: Cluster, agent: agent_process.Agent, gpus: Path
) -> None:
    await cluster.until(cluster.is_audited)
    document = await cluster.gpunode()
    node = codec.read(document)
    assert [gpu.uuid for gpu in node.gpus] == simulated.uuids(gpus)
    assert all(gpu.healthy and gpu.memory_bytes == 40 << 30 for gpu in node.gpus)
    assert node.config == "default"
    assert {condition.type: (condition.status, condition.reason) for condition in node.conditions} == {
        "Ready": ("True", "GpusHealthy"),
        "ConfigValid": ("True", "InForce"),
        "ConfigPending": ("False", "Done"),
        "LimitsInForce": ("True", "Audited"),
    }
    (owner,) = document["metadata"]["ownerReferences"]
    uid = cluster.administrator.read(f"/api/v1/nodes/{cluster.node}")["metadata"]["uid"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", cluster.node, uid)
    assert not document.get("spec")


async def test_a_stopping_agent_closes_its_node_until_the_next_one_serves(
    cluster: Cluster, short_path: Path, gpus: Path
) -> None:
    async def closed() -> str:
        return codec.read(await cluster.gpunode()).closed

    async def is_open() -> bool:
        return not await closed()

    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    running = functools.partial(agent_process.running, cluster.node, short_path, kubeconfig=credentials, gpus=gpus)
    async with running() as first:
        await first.until("Wrote the GPUNode's status")
        assert not await closed()
        assert await first.stop() == 0
    assert await closed() == "the node's agent has stopped; no pod is placed here until it is back"
    async with running() as second:
        await second.until("Not registered with the kubelet")
        # The Node has no GPU resources yet: the agent writes the capacity after it has read the status.
        await cluster.until(cluster.memory)
        assert await closed()
        kubelet = simulated_kubelet.Kubelet(short_path / "kubelet")
        await kubelet.start()
        try:
            await cluster.until(is_open)
        finally:
            await kubelet.stop()


async def test_in_a_pod_the_agent_reports_how_containers_get_devices(
    cluster: Cluster, short_path: Path, gpus: Path
) -> None:
    async def said() -> tuple[str, str, str]:
        conditions = (await cluster.gpunode())["status"]["conditions"]
        (injection,) = [
            condition for condition in conditions if condition["type"] == contract.CONDITION_DEVICES_INJECTED
        ]
        return injection["status"], injection["reason"], injection["message"]

    handler = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": cluster.node},
        "handler": "x",
    }
    spec = {"nodeName": cluster.node, "runtimeClassName": cluster.node, "containers": [{"name": "main", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": cluster.node, "namespace": "default"}, "spec": spec}
    handlers, pods = "/apis/node.k8s.io/v1/runtimeclasses", "/api/v1/namespaces/default/pods"
    cluster.administrator.create(handlers, handler)
    uid = cluster.administrator.create(pods, pod)["metadata"]["uid"]
    # The pod's container asked for a driver, and uses a file that was mounted.
    library = short_path / "libnvidia-ml.so.1"
    library.touch()
    source = simulated.BUILD / library.name
    mounting = (
        "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True); libc.unshare(0x00020000); "
        f"libc.mount(None, b'/', None, 0x44000, None); "
        f"assert libc.mount({str(source).encode()!r}, {str(library).encode()!r}, None, 0x1000, None) == 0; "
        "from deviceplugin import __main__; sys.exit(__main__.main())"
    )
    environment = {"POD_UID": uid, "NVIDIA_VISIBLE_DEVICES": "all", "LD_LIBRARY_PATH": str(short_path)}
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    try:
        async with agent_process.running(
            cluster.node,
            short_path,
            kubeconfig=credentials,
            gpus=gpus,
            program=("-c", mounting),
            environment=environment,
        ) as agent:
            await agent.until("Wrote the GPUNode's status")
            status, reason, message = await said()
            assert (status, reason) == ("True", "RuntimeClass"), message
            assert f"runtimeClassName: {cluster.node}" in message
        named = {**environment, "DEVICE_LIST_STRATEGY": "cdi-cri", "CONTAINER_DRIVER_ROOT": str(short_path / "none")}
        async with agent_process.running(
            cluster.node,
            short_path,
            kubeconfig=credentials,
            gpus=gpus,
            program=("-c", mounting),
            environment=named,
        ) as agent:
            await agent.until("Wrote the GPUNode's status")
            status, reason, message = await said()
            assert (status, reason) == ("False", "NothingInjects")
            assert f"cdi-cri: --cdi-directory {short_path / 'cdi'} is not mounted from the host" in message
    finally:
        await cluster.delete(f"{pods}/{cluster.node}")
        await cluster.delete(f"{handlers}/{cluster.node}")


async def test_denial_that_the_kernel_cannot_enforce_is_reported(
    cluster: Cluster, short_path: Path, gpus: Path
) -> None:
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    more = ("--deny-unregistered", f"--cgroup-root={short_path}")
    async with agent_process.running(cluster.node, short_path, kubeconfig=credentials, gpus=gpus, more=more) as agent:
        await agent.until("Wrote the GPUNode's status")
        conditions = codec.read(await cluster.gpunode()).conditions
    (denial,) = [condition for condition in conditions if condition.type == contract.CONDITION_UNREGISTERED_DENIED]
    assert (denial.status, denial.reason) == ("False", "NotPossible")
    assert f"{short_path} is not cgroup v2" in denial.message


async def test_an_unchanged_status_is_written_once(cluster: Cluster, agent: agent_process.Agent) -> None:
    await cluster.until(cluster.is_audited)
    version = (await cluster.gpunode())["metadata"]["resourceVersion"]
    await asyncio.sleep(7)  # longer than the interval between observations of the GPUs
    assert (await cluster.gpunode())["metadata"]["resourceVersion"] == version
    written = [line["msg"] for line in agent.lines].count("Wrote the GPUNode's status")
    assert written in (1, 2)  # the first status does not wait for an audit of more than 5 s


async def test_the_audit_can_be_read_from_the_agent(cluster: Cluster, agent: agent_process.Agent, gpus: Path) -> None:
    await cluster.until(cluster.is_audited)
    status, text = await agent.get(contract.AUDIT_PATH)
    audit = json.loads(text)
    assert (status, audit["node"], audit["problem"], audit["shares"]) == (200, cluster.node, "", [])
    assert [(gpu["uuid"], gpu["mode"], gpu["processes"]) for gpu in audit["gpus"]] == [
        (uuid, "fractional", []) for uuid in simulated.uuids(gpus)
    ]
    _, metrics = await agent.get("/metrics")
    assert f'gpushare_audit_complete{{node="{cluster.node}"}} 1.0' in metrics


async def test_the_last_agents_findings_stay_until_the_pods_are_known(
    cluster: Cluster, short_path: Path, gpus: Path
) -> None:
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    running = functools.partial(agent_process.running, cluster.node, short_path, kubeconfig=credentials, gpus=gpus)
    async with running() as first:
        await cluster.until(cluster.is_audited)
        assert await first.stop() == 0
    status = (await cluster.gpunode())["status"]
    (limits,) = (entry for entry in status["conditions"] if entry["type"] == contract.CONDITION_LIMITS_IN_FORCE)
    limits |= {"status": "False", "reason": "ProcessUnlimited"}
    await cluster.patch(f"{cluster.gpunode_path}/status", {"status": {"conditions": status["conditions"]}})
    seen = {await cluster.limits()}

    async def is_audited() -> bool:
        seen.add(await cluster.limits())
        return await cluster.is_audited()

    listed = short_path / "listed"
    async with running(program=("-m", "tests.deviceplugin.slow_pods", str(listed))) as second:
        status_code, text = await second.get(contract.AUDIT_PATH)
        while status_code != 200:
            await asyncio.sleep(0.1)
            status_code, text = await second.get(contract.AUDIT_PATH)
        assert json.loads(text)["problem"] == "the pods and the GPUNode are not known yet, so shares cannot be checked"
        for _ in range(10):  # longer than its first status waits for an audit
            await asyncio.sleep(0.3)
            seen.add(await cluster.limits())
        listed.touch()
        await cluster.until(is_audited)
        seen.add(await cluster.limits())  # it may have changed after `is_audited`
    assert seen == {"ProcessUnlimited", "Audited"}


async def test_the_nodes_capacity_is_written_again_after_it_was_removed(
    cluster: Cluster, agent: agent_process.Agent, gpus: Path
) -> None:
    async def is_four() -> bool:
        return await cluster.memory() == str(160 << 30)

    async def is_three() -> bool:
        return await cluster.memory() == str(120 << 30)

    await cluster.until(is_four)
    await simulated.change("fail", gpus, "1", "lost")
    await cluster.until(is_three)
    await simulated.change("heal", gpus, "1")
    await cluster.until(is_four)


async def test_a_lost_gpu_and_its_recovery_are_reported(
    cluster: Cluster, agent: agent_process.Agent, gpus: Path
) -> None:
    async def shows(sentence: str) -> bool:
        return sentence in await cluster.ready()

    await agent.until("Wrote the GPUNode's status")
    await simulated.change("fail", gpus, "2", "lost")
    await cluster.until(lambda: shows("3 of 4 GPUs are healthy; GPU 2"))
    node = codec.read(await cluster.gpunode())
    assert [gpu.healthy for gpu in node.gpus] == [True, True, False, True]
    assert "GPU is lost" in node.gpus[2].health_reason
    await simulated.change("heal", gpus, "2")
    await cluster.until(lambda: shows("4 of 4 GPUs are healthy"))


async def test_a_gpu_that_was_lost_before_the_start_keeps_its_uuid(
    cluster: Cluster, agent: agent_process.Agent, gpus: Path, short_path: Path
) -> None:
    await agent.until("Wrote the GPUNode's status")
    assert await agent.stop() == 0
    await simulated.change("fail", gpus, "0", "lost")
    credentials = short_path / "kubeconfig"
    async with agent_process.running(cluster.node, short_path, kubeconfig=credentials, gpus=gpus) as again:
        await again.until("A GPU is not healthy", gpu=simulated.uuids(gpus)[0])

        async def shows() -> bool:
            return [gpu.healthy for gpu in codec.read(await cluster.gpunode()).gpus] == [False, True, True, True]

        await cluster.until(shows)
        assert [gpu.uuid for gpu in codec.read(await cluster.gpunode()).gpus] == simulated.uuids(gpus)


async def test_allocations_are_never_touched(cluster: Cluster, agent: agent_process.Agent, gpus: Path) -> None:
    await agent.until("Wrote the GPUNode's status")
    entry = builders.allocation("a1", simulated.uuids(gpus)[0], reserved_until=2e9)
    held = await cluster.place(lambda node: ledger.reserve(node, entry))
    await simulated.change("fail", gpus, "3", "lost")

    async def shows() -> bool:
        return "3 of 4" in await cluster.ready()

    await cluster.until(shows)
    assert (await cluster.gpunode())["spec"] == codec.to_spec(held)


async def test_a_deleted_or_overwritten_gpunode_is_restored(
    cluster: Cluster, agent: agent_process.Agent, gpus: Path
) -> None:
    await agent.until("Wrote the GPUNode's status")
    await cluster.delete(cluster.gpunode_path)

    async def is_back() -> bool:
        return await cluster.has_gpus(4)

    await cluster.until(is_back)
    await cluster.patch(f"{cluster.gpunode_path}/status", {"status": {"gpus": [], "config": "other"}})
    await cluster.until(is_back)
    assert codec.read(await cluster.gpunode()).config == "default"


async def test_an_unused_share_shrinks_at_once_and_the_status_shows_it(
    cluster: Cluster, agent: agent_process.Agent, gpus: Path
) -> None:
    async def write(**amounts: int | None) -> None:
        share = GivenShare(("main",), (simulated.uuids(gpus)[0],), 50, 100, 8 << 30)
        entry = Allocation("a1", PodRef("ml", "a", "u"), (dataclasses.replace(share, **amounts),))
        await cluster.place(lambda node: dataclasses.replace(node, allocations=(entry,)))

    async def told(*expected: Resize) -> bool:
        return codec.read(await cluster.gpunode()).resizes == expected

    await agent.until("Wrote the GPUNode's status")
    await write(shrink_to_bytes=4 << 30)
    await cluster.until(lambda: told(Resize("a1", 0, 4 << 30, 0)))
    await write(memory_bytes=4 << 30)
    await cluster.until(told)


async def test_an_agent_whose_calls_are_all_rejected_is_not_ready(
    cluster: Cluster, short_path: Path, gpus: Path
) -> None:
    """Its token is bound to its Node, which this test deletes."""
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    async with agent_process.running(
        cluster.node, short_path, kubeconfig=credentials, gpus=gpus, program=("-m", "tests.deviceplugin.short_watches")
    ) as agent:
        await agent.until("Wrote the GPUNode's status")

        async def is_told() -> bool:
            return "the API server" not in (await agent.get("/readyz"))[1]

        await cluster.until(is_told)
        await cluster.delete(f"/api/v1/nodes/{cluster.node}")

        async def is_refused() -> bool:
            status, text = await agent.get("/readyz")
            return status == 500 and "no update from the API server for" in text and "Unauthorized" in text

        await cluster.until(is_refused)
