"""The MPS daemons of an agent, from the shares in the GPUNode of a real API server."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from deviceplugin.mps.steps import DaemonFiles
from gpushare import codec, ledger, mig_shares
from gpushare.allocation import Allocation, Isolation
from gpushare.gpunode import GpuNode
from tests import builders
from tests.deviceplugin import agent_process, simulated
from tests.deviceplugin.api_server_node import installed
from tests.deviceplugin.modes.test_on_api_server import Node, configured, node
from tests.deviceplugin.mps import keepers

__all__ = ["configured", "installed", "node"]
pytestmark = pytest.mark.apiserver


@pytest.fixture
def gpus(simulation: None, tmp_path: Path) -> Path:
    """Return the directory of GPUs whose driver has SM partitions."""
    text = simulated.NODE.read_text().replace("550.54.15", "620.10").replace("= 12.4", "= 13.6")
    (tmp_path / "node.ini").write_text(text)
    simulated.command("create", tmp_path / "node.ini", tmp_path / "gpus")
    return tmp_path / "gpus"


def control_program(node: Node, directory: Path) -> Path:
    """Return a control program that finds its GPUs without a variable, as a real one does."""
    program = directory / "control"
    control = simulated.BUILD / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\nSIMGPU_DIR={node.gpus} exec {control} "$@"\n')
    program.chmod(0o755)
    return program


def agent_with_keeper(node: Node, directory: Path) -> Any:
    credentials = node.agents_kubeconfig(directory / "kubeconfig")
    more = (f"--mps-program={directory / 'mps' / 'keeper.sock'}", f"--mps-root={directory / 'mps'}")
    return agent_process.running(
        node.node, directory, kubeconfig=credentials, gpus=node.gpus, more=more, program=agent_process.HURRIED
    )


async def test_a_gpu_has_an_mps_daemon_from_its_first_share_with_that_isolation_to_its_last(
    node: Node, short_path: Path
) -> None:
    async def are_offered() -> bool:
        there = [(gpu.isolations, gpu.sm_partitions) for gpu in codec.read(await node.gpunode()).gpus]
        return there == [((Isolation.ARBITER, Isolation.MPS), 2), *[((Isolation.ARBITER,), 0)] * 3]

    daemons = [DaemonFiles(short_path / "mps", uuid).pid_file for uuid in node.uuids]

    async def one_runs() -> bool:
        return [file.exists() for file in daemons] == [True, False, False, False]

    async def none_runs() -> bool:
        return not any(file.exists() for file in daemons)

    await node.label("clients")
    keeper, program = short_path / "mps" / "keeper.sock", control_program(node, short_path)
    running = functools.partial(agent_with_keeper, node, short_path)
    entry = builders.allocation("a1", node.uuids[0], isolation=Isolation.MPS)
    async with keepers.running(keeper, program), running() as agent:
        await node.until(are_offered)
        assert await none_runs()
        await node.place(lambda known: ledger.reserve(known, entry))
        await node.until(one_runs)
        await agent.until("An MPS daemon runs")
        assert DaemonFiles(short_path / "mps", node.uuids[0]).started.read_text() == "2"
        pid = daemons[0].read_text()
        assert await agent.stop() == 0
    async with keepers.running(keeper, program), running() as agent:
        await agent.until("An MPS daemon runs")
        assert daemons[0].read_text() == pid, "its clients live on"
        await node.place(lambda known: dataclasses.replace(known, allocations=()))
        await node.until(none_runs)
        assert await agent.stop() == 0


async def test_a_gpu_that_is_cut_has_no_mps_daemon_until_it_is_whole(node: Node, short_path: Path) -> None:
    keeper, program = short_path / "mps" / "keeper.sock", control_program(node, short_path)
    first, second = (DaemonFiles(short_path / "mps", uuid).pid_file for uuid in node.uuids[:2])
    clients = [builders.allocation(uuid, uuid, isolation=Isolation.MPS) for uuid in node.uuids[:2]]
    cut = builders.allocation("cut", node.uuids[0], request=10, memory_gib=4, isolation=Isolation.MIG)

    async def is_offered() -> bool:
        gpus = codec.read(await node.gpunode()).gpus
        return bool(gpus) and gpus[0].isolations == (Isolation.ARBITER, Isolation.MPS, Isolation.MIG)

    async def is_cut() -> bool:
        return codec.read(await node.gpunode()).gpus[0].mig_profiles == ("1g.5gb",)

    async def is_there(pid_file: Path) -> bool:
        return await asyncio.to_thread(pid_file.exists)

    async def is_gone(pid_file: Path) -> bool:
        return not await is_there(pid_file)

    def on_device(known: GpuNode) -> Allocation:
        device = mig_shares.read_device(known.gpus[0], "1g.5gb@6")
        return dataclasses.replace(cut, shares=(mig_shares.on_device(cut.shares[0], device),))

    await node.label("clients-on-demand")
    async with keepers.running(keeper, program), agent_with_keeper(node, short_path) as agent:
        await node.until(is_offered)
        await node.place(lambda known: dataclasses.replace(known, allocations=(on_device(known),)))
        await node.until(is_cut)
        # The ledger never has both kinds on a GPU, but the GPU stays cut for a while after the first.
        await node.place(lambda known: dataclasses.replace(known, allocations=(*known.allocations, *clients)))
        await node.until(lambda: is_there(second))
        await node.place(lambda known: dataclasses.replace(known, allocations=known.allocations[:2]))
        await node.until(lambda: is_gone(second))  # so all daemons have been compared with the ledger again
        assert not first.exists()
        await node.place(lambda known: dataclasses.replace(known, allocations=(clients[0],)))
        await node.until(lambda: is_there(first))
        await node.place(lambda known: dataclasses.replace(known, allocations=()))
        await node.until(lambda: is_gone(first))
        assert await agent.stop() == 0
