"""The agent on a real API server, with the permissions of its manifests: the GPUNode and the Node's capacity."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.shares import MpsShares
from deviceplugin.report.gpunode_status import GpuNodeStatus
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.node_state import NodeState
from gpushare import codec, contract, ledger
from gpushare.allocation import Allocation, GivenShare, Isolation, Labels, PodRef
from gpushare.cluster import api_client, api_errors
from gpushare.gpunode import Gpu, GpuNode, Resize
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
    uid = await cluster.kubectl("get", "node", cluster.node, "--output=jsonpath={.metadata.uid}")
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
    for document in (handler, pod):
        await cluster.kubectl("create", "--validate=false", "--filename=-", input=json.dumps(document))
    uid = await cluster.kubectl("get", "pod", cluster.node, "--namespace=default", "--output=jsonpath={.metadata.uid}")
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
        await cluster.kubectl("delete", "pod", cluster.node, "--namespace=default", "--grace-period=0", "--force")
        await cluster.kubectl("delete", "runtimeclass", cluster.node)


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
    await cluster.kubectl("delete", "gpunode", cluster.node)

    async def is_back() -> bool:
        return await cluster.has_gpus(4)

    await cluster.until(is_back)
    patch = '{"status": {"gpus": [], "config": "other"}}'
    await cluster.kubectl("patch", "gpunode", cluster.node, "--subresource=status", "--type=merge", f"--patch={patch}")
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


async def test_resizes_are_only_written_for_the_current_gpunode(cluster: Cluster, short_path: Path) -> None:
    promised = Resize("a1", 0, 4 << 30, 0)
    seen: list[str] = []

    async def resizes(node: GpuNode) -> tuple[Resize, ...]:
        seen.append(node.version)
        if len(seen) == 1:  # the placer writes at this moment
            cluster.administrator.kubectl("annotate", "gpunode", cluster.node, "somebody=wrote")
        return (promised,)

    async def nothing_shrinks(_: GpuNode) -> tuple[Resize, ...]:
        return ()

    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    async with api_client.connect(str(credentials), component="agent") as api:
        wake = asyncio.Event()
        gpunode = GpuNodeCopy(api, node_name=cluster.node, wake=wake)
        await GpuNodeStatus(api, gpunode, NodeState(), wake=wake, resizes=nothing_shrinks).step()
        before = dict(gpunode.document or {})
        status = GpuNodeStatus(api, gpunode, NodeState(), wake=wake, resizes=resizes)
        with pytest.raises(api_errors.Conflict):
            await status.step()
        assert codec.read(await cluster.gpunode()).resizes == ()
        await status.step()
        assert codec.read(await cluster.gpunode()).resizes == (promised,)
        assert len(set(seen)) == 2
        # A write without resizes that arrives late does not withdraw them.
        gpunode.document = {**before, "status": {**before["status"], "config": "older"}}
        await GpuNodeStatus(api, gpunode, NodeState(), wake=wake, resizes=nothing_shrinks).step()
        assert codec.read(await cluster.gpunode()).resizes == (promised,)
        # Nor does one of an agent that knows a share to which memory may be lent since.
        share = GivenShare(("main",), ("GPU-1",), 50, 100, 4 << 30, memory_limit_bytes=8 << 30)
        entry = Allocation("a1", PodRef("ml", "a", "u"), (share,))
        await cluster.place(lambda node: dataclasses.replace(node, allocations=(entry,)))
        stale = await cluster.gpunode()
        del stale["status"]["lent"]
        gpunode.document = {**stale, "status": {**stale["status"], "config": "oldest"}}
        cluster.administrator.kubectl("annotate", "gpunode", cluster.node, "somebody=else", "--overwrite")
        with pytest.raises(api_errors.Conflict):
            await GpuNodeStatus(api, gpunode, NodeState(), wake=wake, resizes=nothing_shrinks).step()
    used = rights.used_on(cluster.administrator, contract.AGENT_SERVICE_ACCOUNT)
    assert ("gpunodes.gpushare.io", "get") in used  # after a conflict


async def test_a_new_number_of_sm_partitions_meets_no_share_placed_meanwhile(
    cluster: Cluster, short_path: Path
) -> None:
    uuid, state, wake = "GPU-1", NodeState(), asyncio.Event()
    share = GivenShare(("main",), (uuid,), 25, 25, 8 << 30)
    entry = Allocation("a1", PodRef("ml", "a", "u"), (share,), labels=Labels(isolation=Isolation.MPS))

    async def nothing_shrinks(_: GpuNode) -> tuple[Resize, ...]:
        return ()

    async def write(count: int) -> int:
        state.gpus.publish((Gpu(uuid, 0, "A100", 80 << 30, isolations=(Isolation.MPS,), sm_partitions=count),))
        await status.step()
        (gpu,) = codec.read(await cluster.gpunode()).gpus
        return gpu.sm_partitions

    async with api_client.connect(str(cluster.agents_kubeconfig(short_path / "kubeconfig")), component="agent") as api:
        gpunode = GpuNodeCopy(api, node_name=cluster.node, wake=wake)
        mps = MpsShares(
            Daemons(root=short_path, program=short_path / "keeper", set_exclusive=unused),
            node=gpunode.now,
            fractional=lambda: frozenset({uuid}),
        )
        status = GpuNodeStatus(api, gpunode, state, wake=wake, resizes=nothing_shrinks, partitions=mps.partitions)
        assert await write(4) == 4
        assert await write(2) == 2, "there is no share"
        await cluster.place(lambda node: dataclasses.replace(node, allocations=(entry,)))
        with pytest.raises(api_errors.Conflict):
            await write(4)
        assert await write(4) == 2, "the share has one of two"
        await cluster.place(lambda node: dataclasses.replace(node, allocations=()))
        gpunode.document = await cluster.gpunode()
        assert await write(4) == 4


async def unused(uuid: str, exclusive: bool) -> None:
    raise AssertionError(uuid, exclusive)


async def test_a_status_does_not_wait_for_a_driver_that_hangs(
    cluster: Cluster, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deviceplugin.report.gpunode_status.RESIZES_SECONDS", 0.05)
    promised, answers, wake = Resize("a1", 0, 4 << 30, 0), asyncio.Event(), asyncio.Event()

    async def resizes(_: GpuNode) -> tuple[Resize, ...]:
        await answers.wait()
        return (promised,)

    async with api_client.connect(str(cluster.agents_kubeconfig(short_path / "kubeconfig")), component="agent") as api:
        state = NodeState()
        status = GpuNodeStatus(
            api, GpuNodeCopy(api, node_name=cluster.node, wake=wake), state, wake=wake, resizes=resizes
        )
        await status.step()
        state.gpus.publish((Gpu("GPU-1", 0, "L4", 24 << 30),))
        await status.step()
        assert [gpu.uuid for gpu in codec.read(await cluster.gpunode()).gpus] == ["GPU-1"]
        wake.clear()
        answers.set()
        await wake.wait()
        await status.step()
        assert codec.read(await cluster.gpunode()).resizes == (promised,)


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
        await cluster.kubectl("delete", "node", cluster.node)

        async def is_refused() -> bool:
            status, text = await agent.get("/readyz")
            return status == 500 and "no update from the API server for" in text and "Unauthorized" in text

        await cluster.until(is_refused)
