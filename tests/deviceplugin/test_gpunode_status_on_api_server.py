"""The agent's writes to a GPUNode that other writers change at the same time, or while a driver hangs."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from deviceplugin.mps.daemons import Daemons
from deviceplugin.mps.shares import MpsShares
from deviceplugin.report.gpunode_status import GpuNodeStatus
from deviceplugin.state.gpunode_copy import GpuNodeCopy
from deviceplugin.state.node_state import NodeState
from gpushare import codec, contract
from gpushare.allocation import Allocation, GivenShare, Isolation, Labels, PodRef
from gpushare.cluster import api_client, api_errors
from gpushare.gpunode import Gpu, GpuNode, Resize
from tests import rights
from tests.deviceplugin.api_server_node import Cluster, cluster, installed

__all__ = ["cluster", "installed"]

pytestmark = pytest.mark.apiserver


async def test_resizes_are_only_written_for_the_current_gpunode(cluster: Cluster, short_path: Path) -> None:
    promised = Resize("a1", 0, 4 << 30, 0)
    seen: list[str] = []

    async def resizes(node: GpuNode) -> tuple[Resize, ...]:
        seen.append(node.version)
        if len(seen) == 1:  # the placer writes at this moment
            cluster.administrator.patch(cluster.gpunode_path, {"metadata": {"annotations": {"somebody": "wrote"}}})
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
        cluster.administrator.patch(cluster.gpunode_path, {"metadata": {"annotations": {"somebody": "else"}}})
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
        state.gpus.publish((Gpu("GPU-1", 0, "L4", 24 << 30),))
        await status.step()
        assert "status" not in await cluster.gpunode(), "the placer would take memory that is lent as free"
        wake.clear()
        answers.set()
        await wake.wait()
        await status.step()
        assert codec.read(await cluster.gpunode()).resizes == (promised,)
        answers.clear()
        state.gpus.publish((Gpu("GPU-1", 0, "L4", 24 << 30, healthy=False),))
        await status.step()
        stored = codec.read(await cluster.gpunode())
        assert ([gpu.healthy for gpu in stored.gpus], stored.resizes) == ([False], (promised,))
        promised = dataclasses.replace(promised, used_bytes=1)
        wake.clear()
        answers.set()
        await wake.wait()
        await status.step()
        assert codec.read(await cluster.gpunode()).resizes == (promised,)
