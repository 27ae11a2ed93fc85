"""The agent and the arbiter's process: if either ends, so does the other, and the log says why."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare import contract
from tests.deviceplugin import agent_process, waiting
from tests.deviceplugin.host.test_kernel_process import has_ended
from tests.deviceplugin.test_agent_without_cluster import unreachable

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def running(directory: Path, gpus: Path) -> AsyncIterator[tuple[agent_process.Agent, int, int]]:
    """Yield a serving agent, the PID of its arbiter, and a pidfd of it."""
    async with agent_process.running("node-a", directory, kubeconfig=unreachable(directory), gpus=gpus) as agent:
        await agent.until("Serving")
        (pid,) = [line["pid"] for line in agent.lines if line["msg"] == "Started the arbiter"]
        arbiter = os.pidfd_open(pid)
        try:
            yield agent, pid, arbiter
        finally:
            os.close(arbiter)


async def test_an_agent_ends_with_its_arbiter_and_the_next_pair_runs(short_path: Path, gpus: Path) -> None:
    async with running(short_path, gpus) as (agent, pid, _):
        os.kill(pid, signal.SIGKILL)
        assert await agent.ended() == 1
        (failure,) = [line for line in agent.lines if line["msg"] == "The background task arbiter failed"]
        assert "has ended by SIGKILL: the agent exits too, and both are restarted" in failure["err"]
    async with running(short_path, gpus) as (agent, _, arbiter):
        assert not agent.said("Dropped a ledger's record")
        assert (short_path / "run" / contract.ARBITER_SOCKET_NAME).is_socket()
        assert await agent.stop() == 0
        assert has_ended(arbiter)
        assert not agent.other
    assert list((short_path / "run").iterdir()) == []


async def test_an_arbiter_ends_with_its_agent(short_path: Path, gpus: Path) -> None:
    async with running(short_path, gpus) as (agent, _, arbiter):
        agent.process.kill()
        await waiting.until(lambda: has_ended(arbiter))
        await agent.ended()
        assert agent.said("Shutting down", component="arbiter", reason="the agent has ended")
    assert not (short_path / "run" / contract.ARBITER_SOCKET_NAME).exists()


async def test_readiness_reports_a_stopped_arbiter(short_path: Path, gpus: Path) -> None:
    async with running(short_path, gpus) as (agent, pid, _):

        async def is_told() -> bool:
            return "arbiter: the arbiter has not answered for" in (await agent.get("/readyz"))[1]

        assert not await is_told()
        for number, expected in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            os.kill(pid, number)
            await waiting.until_async(is_told, expected)
        assert (await agent.get("/healthz"))[0] == 200


async def test_an_agent_ends_if_its_arbiter_cannot_start(short_path: Path, gpus: Path) -> None:
    (short_path / "run").mkdir()
    (short_path / "run" / contract.ARBITER_SOCKET_NAME).mkdir()  # takes the place of its socket
    async with agent_process.running("node-a", short_path, kubeconfig=unreachable(short_path), gpus=gpus) as agent:
        assert await agent.ended() == 1
        assert any("has ended with exit code 1" in line.get("err", "") for line in agent.lines)
        assert agent.said("The daemon failed", component="arbiter")
