"""The MPS daemons of an agent, from the shares in the GPUNode of a real API server."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest

from deviceplugin.mps.steps import DaemonFiles
from gpushare import codec, ledger
from gpushare.allocation import Isolation
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
    credentials = node.agents_kubeconfig(short_path / "kubeconfig")
    keeper = short_path / "mps" / "keeper.sock"
    running = functools.partial(
        agent_process.running,
        node.node,
        short_path,
        kubeconfig=credentials,
        gpus=node.gpus,
        more=(f"--mps-program={keeper}", f"--mps-root={short_path / 'mps'}"),
    )
    program = short_path / "control"  # a real daemon finds its GPUs without a variable
    control = simulated.BUILD / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\nSIMGPU_DIR={node.gpus} exec {control} "$@"\n')
    program.chmod(0o755)
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
