"""MIG devices that an agent cuts for the shares in the GPUNode of a real API server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gpushare import codec, ledger, mig_shares
from gpushare.allocation import Allocation, Isolation
from gpushare.gpunode import GpuNode
from tests import builders
from tests.deviceplugin.api_server_node import installed
from tests.deviceplugin.modes.test_on_api_server import Node, configured, node, running

__all__ = ["configured", "installed", "node"]
pytestmark = pytest.mark.apiserver


def entry(known: GpuNode) -> Allocation:
    gpu = known.gpus[0]
    made = builders.allocation("a1", gpu.uuid, request=10, memory_gib=4, isolation=Isolation.MIG)
    device = mig_shares.read_device(gpu, "1g.5gb@6")
    return dataclasses.replace(made, shares=(mig_shares.on_device(made.shares[0], device),))


async def test_device_is_cut_for_a_share_outlives_the_agent_and_gives_way_to_another_kind(
    node: Node, short_path: Path
) -> None:
    async def is_offered() -> bool:
        gpus = codec.read(await node.gpunode()).gpus
        return bool(gpus) and gpus[0].isolations == (Isolation.ARBITER, Isolation.MIG)

    async def has_devices(*profiles: str) -> bool:
        gpu = codec.read(await node.gpunode()).gpus[0]
        return gpu.mig_profiles == profiles and gpu.pending_mode is None and await node.modes() == ["fractional"] * 4

    await node.label("on-demand")
    async with running(node, short_path) as agent:
        await node.until(is_offered)
        await node.place(lambda known: ledger.reserve(known, entry(known)))
        await node.until(lambda: has_devices("1g.5gb"))
        agent.process.kill()
    await node.label("default")  # without CDI
    async with running(node, short_path) as agent:
        await agent.until("Serving")
        await node.kubelet.until(lambda: node.starts_are_checked())
        assert await has_devices("1g.5gb")
        assert not agent.said("Cutting a GPU for shares")
        other = builders.allocation("b1", node.uuids[0])
        await node.place(lambda known: dataclasses.replace(known, allocations=(other,)))
        await node.until(has_devices)
        await node.kubelet.until(lambda: not node.starts_are_checked())
        events = await node.events()
        assert not [line for line in events if "GpuSetAside" in line or "MigDeviceFailed" in line], events
