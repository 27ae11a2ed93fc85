"""A node that comes back under its name with other hardware while shares exist, and an agent whose clock is changed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpushare import codec, ledger
from gpushare.gpunode import Gpu, GpuNode
from tests import builders
from tests.clock import clocks
from tests.deviceplugin import agent_process, simulated
from tests.deviceplugin.api_server_node import Cluster, cluster, installed

__all__ = ["cluster", "installed"]

pytestmark = pytest.mark.apiserver

GIB = 1 << 30
OTHER = """\
[node]
name = other-hardware
driver-version = 550.54.15
cuda-version = 12.4
[gpu 0]
count = 2
model = NVIDIA A100-SXM4-80GB
memory = 80GiB
compute-capability = 8.0
multiprocessors = 108
pci-bus-id = 00000000:07:00.0
mig-capable = yes
"""


async def gpus_of(cluster: Cluster) -> Mapping[str, Gpu]:
    return codec.read(await cluster.gpunode()).gpu_by_uuid()


async def hold(cluster: Cluster, uuid: str, **amounts: int) -> GpuNode:
    """Reserve a share on the node; return the stored GPUNode."""
    entry = builders.allocation("a1", uuid, **amounts)
    reserved, confirmed = dataclasses.replace(entry, reserved_until=2e9), dataclasses.replace(entry.pod, uid="u1")
    return await cluster.place(lambda node: ledger.confirm(ledger.reserve(node, reserved), {"a1": confirmed}))


async def test_a_share_on_removed_gpus_stays_and_new_gpus_are_offered(
    cluster: Cluster, short_path: Path, gpus: Path
) -> None:
    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    old = simulated.uuids(gpus)
    async with agent_process.running(
        cluster.node, short_path, kubeconfig=credentials, gpus=gpus, program=agent_process.HURRIED
    ) as agent:
        await agent.until("Wrote the GPUNode's status")
        spec = codec.to_spec(await hold(cluster, old[0]))
        assert await agent.stop() == 0
    other = short_path / "other"
    (short_path / "other.ini").write_text(OTHER)
    simulated.command("create", short_path / "other.ini", other)
    new = simulated.uuids(other)
    assert not {*new} & {*old}
    async with agent_process.running(cluster.node, short_path, kubeconfig=credentials, gpus=other) as agent:

        async def is_told() -> bool:
            return {*new} <= (await gpus_of(cluster)).keys()

        await cluster.until(is_told)
        listed = await gpus_of(cluster)
        assert listed.keys() == {*new, old[0]}, "who has the share is found, and nobody else's old GPU"
        assert [listed[uuid].healthy for uuid in (*new, old[0])] == [True, True, False]
        assert {listed[uuid].memory_bytes for uuid in new} == {80 * GIB}
        assert listed[old[0]].health_reason == "the driver no longer lists it"
        document = await cluster.gpunode()
        assert document["spec"] == spec, "the ledger is the placer's"
        assert ledger.violations(codec.read(document)) == []

        await cluster.patch(cluster.gpunode_path, {"spec": {"allocations": []}})

        async def is_forgotten() -> bool:
            return (await gpus_of(cluster)).keys() == {*new}

        await cluster.until(is_forgotten)


async def without_arbiter(agent: agent_process.Agent) -> list[str]:
    """Return the failed readiness checks, without the arbiter's, which may be slow for a moment."""
    _, text = await agent.get("/readyz")
    return [line for line in text.splitlines() if not line.startswith("arbiter:")]


async def test_an_agent_survives_a_change_of_the_clock(cluster: Cluster, short_path: Path, gpus: Path) -> None:
    async def says(sentence: str) -> bool:
        return sentence in await cluster.ready()

    credentials = cluster.agents_kubeconfig(short_path / "kubeconfig")
    clock = clocks.Clock(short_path / "clock")
    async with agent_process.running(
        cluster.node, short_path, kubeconfig=credentials, gpus=gpus, environment=clock.environment
    ) as agent:
        await agent.until("Wrote the GPUNode's status")
        ready = await without_arbiter(agent)  # no kubelet runs, before or after
        clock.set(3600)
        await simulated.change("fail", gpus, "2", "lost")
        await cluster.until(lambda: says("3 of 4 GPUs are healthy"))
        clock.set(-3600)
        await simulated.change("heal", gpus, "2")
        await cluster.until(lambda: says("4 of 4 GPUs are healthy"))
        await cluster.delete(cluster.gpunode_path)

        async def is_back() -> bool:
            return await cluster.has_gpus(4)

        await cluster.until(is_back)
        version = (await cluster.gpunode())["metadata"]["resourceVersion"]
        await asyncio.sleep(3)  # longer than the interval between audits
        assert (await cluster.gpunode())["metadata"]["resourceVersion"] == version
        assert await without_arbiter(agent) == ready
