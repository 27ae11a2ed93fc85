"""The agent on a real API server, with the rights of its manifests: the GPUNode and the node's capacity."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.report.gpunode_status import GpuNodeStatus
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.node_state import NodeState
from gpushare import codec, contract, ledger
from gpushare.allocation import Allocation, GivenShare, PodRef
from gpushare.cluster import api_client, api_errors
from gpushare.gpunode import GpuNode, Resize
from tests import builders, rights
from tests.deviceplugin import agent_process, simulated, simulated_kubelet
from tests.deviceplugin.api_server_node import Cluster, cluster, installed

__all__ = ["cluster", "installed"]

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def agent(cluster: Cluster, short_path: Path, gpus: Path) -> AsyncIterator[agent_process.Agent]:
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    async with agent_process.running(cluster.node, short_path, kubeconfig=credentials, gpus=gpus) as made:
        yield made


async def test_it_makes_the_gpunode_and_says_what_there_is(
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
    uid = await cluster.kubectl("get", "node", cluster.node, "--output=jsonpath={.metadata.uid}")
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", cluster.node, uid)
    assert not document.get("spec")


async def test_one_that_is_told_to_stop_closes_its_node_until_the_next_one_serves_the_kubelet(
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
    assert await closed() == "the node's agent has stopped, and nothing is placed here until it is back"
    async with running() as second:
        await second.until("Not registered with the kubelet")
        # Its Node says nothing of GPUs yet: the capacity is written once the status was looked at.
        await cluster.until(cluster.memory)
        assert await closed()
        kubelet = simulated_kubelet.Kubelet(short_path / "kubelet")
        await kubelet.start()
        try:
            await cluster.until(is_open)
        finally:
            await kubelet.stop()


async def test_in_a_pod_it_says_how_containers_get_devices_by_what_its_node_and_its_own_pod_are(
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
    for document in (handler, pod):
        await cluster.kubectl("create", "--validate=false", "--filename=-", input=json.dumps(document))
    uid = await cluster.kubectl("get", "pod", cluster.node, "--namespace=default", "--output=jsonpath={.metadata.uid}")
    # The pod's container asked for a driver, and what it uses is a file that was mounted.
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
        await cluster.kubectl("delete", "pod", cluster.node, "--namespace=default", "--grace-period=0", "--force")
        await cluster.kubectl("delete", "runtimeclass", cluster.node)


async def test_that_nobody_can_be_denied_a_gpu_here_is_said_where_that_was_asked_for(
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


async def test_it_writes_once_and_not_again_while_nothing_changes(cluster: Cluster, agent: agent_process.Agent) -> None:
    await cluster.until(cluster.is_audited)
    version = (await cluster.gpunode())["metadata"]["resourceVersion"]
    await asyncio.sleep(7)  # longer than it takes to look at the GPUs again
    assert (await cluster.gpunode())["metadata"]["resourceVersion"] == version
    written = [line["msg"] for line in agent.lines].count("Wrote the GPUNode's status")
    assert written in (1, 2)  # an audit that takes more than 5 s is not waited for


async def test_its_audit_is_there_for_whoever_asks(cluster: Cluster, agent: agent_process.Agent, gpus: Path) -> None:
    await cluster.until(cluster.is_audited)
    status, text = await agent.get(contract.AUDIT_PATH)
    audit = json.loads(text)
    assert (status, audit["node"], audit["problem"], audit["shares"]) == (200, cluster.node, "", [])
    assert [(gpu["uuid"], gpu["mode"], gpu["processes"]) for gpu in audit["gpus"]] == [
        (uuid, "fractional", []) for uuid in simulated.uuids(gpus)
    ]
    _, metrics = await agent.get("/metrics")
    assert f'gpushare_audit_complete{{node="{cluster.node}"}} 1.0' in metrics


async def test_what_the_last_agent_found_stands_until_the_next_one_knows_whose_processes_there_are(
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
    patch = json.dumps({"status": {"conditions": status["conditions"]}})
    await cluster.kubectl("patch", "gpunode", cluster.node, "--subresource=status", "--type=merge", f"--patch={patch}")
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
        assert json.loads(text)["problem"] == "pods and GPUNode are not known yet, so neither are the shares given"
        for _ in range(10):  # longer than its first status waits for an audit
            await asyncio.sleep(0.3)
            seen.add(await cluster.limits())
        listed.touch()
        await cluster.until(is_audited)
        seen.add(await cluster.limits())  # it may have changed since `is_audited` asked
    assert seen == {"ProcessUnlimited", "Audited"}


async def test_the_nodes_capacity_is_the_memory_of_its_healthy_gpus_also_after_somebody_took_it_away(
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


async def test_a_lost_gpu_is_told_and_told_back(cluster: Cluster, agent: agent_process.Agent, gpus: Path) -> None:
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


async def test_a_gpu_that_was_lost_before_the_start_keeps_its_name(
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


async def test_a_gpunode_that_somebody_deleted_or_wrote_over_comes_back(
    cluster: Cluster, agent: agent_process.Agent, gpus: Path
) -> None:
    await agent.until("Wrote the GPUNode's status")
    await cluster.kubectl("delete", "gpunode", cluster.node)

    async def is_back() -> bool:
        return await cluster.has_gpus(4)

    await cluster.until(is_back)
    patch = '{"status": {"gpus": [], "config": "other"}}'
    await cluster.kubectl("patch", "gpunode", cluster.node, "--subresource=status", "--type=merge", f"--patch={patch}")
    await cluster.until(is_back)
    assert codec.read(await cluster.gpunode()).config == "default"


async def test_a_share_that_no_process_uses_gives_up_memory_at_once_and_that_is_told_until_it_is_done(
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


async def test_what_is_promised_of_a_share_answers_the_gpunode_as_it_is_or_is_not_written(
    cluster: Cluster, short_path: Path
) -> None:
    promised = Resize("a1", 0, 4 << 30, 0)
    seen: list[str] = []

    async def resizes(node: GpuNode) -> tuple[Resize, ...]:
        seen.append(node.version)
        if len(seen) == 1:  # the placer writes just now
            cluster.administrator.kubectl("annotate", "gpunode", cluster.node, "somebody=wrote")
        return (promised,)

    async def nothing_shrinks(_: GpuNode) -> tuple[Resize, ...]:
        return ()

    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    async with api_client.connect(str(credentials), component="agent") as api:
        wake = asyncio.Event()
        gpunode = GpuNodeCopy(api, node_name=cluster.node, wake=wake)
        await GpuNodeStatus(api, gpunode, NodeState(), wake=wake, resizes=nothing_shrinks).step()
        status = GpuNodeStatus(api, gpunode, NodeState(), wake=wake, resizes=resizes)
        with pytest.raises(api_errors.Conflict):
            await status.step()
        assert codec.read(await cluster.gpunode()).resizes == ()
        await status.step()
        assert codec.read(await cluster.gpunode()).resizes == (promised,)
        assert len(set(seen)) == 2
    used = rights.used_on(cluster.administrator, contract.AGENT_SERVICE_ACCOUNT)
    assert ("gpunodes.gpushare.io", "get") in used  # after a conflict


async def test_one_whose_every_call_is_refused_is_not_ready_and_says_why(
    cluster: Cluster, short_path: Path, gpus: Path
) -> None:
    """Its token is bound to its Node, which is deleted under it."""
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    async with agent_process.running(
        cluster.node, short_path, kubeconfig=credentials, gpus=gpus, program=("-m", "tests.deviceplugin.short_watches")
    ) as agent:
        await agent.until("Wrote the GPUNode's status")

        async def is_told() -> bool:
            return "the API server" not in (await agent.get("/readyz"))[1]

        await cluster.until(is_told)
        await cluster.kubectl("delete", "node", cluster.node)

        async def is_refused() -> bool:
            status, text = await agent.get("/readyz")
            return status == 500 and "the API server has told nothing for" in text and "Unauthorized" in text

        await cluster.until(is_refused)
