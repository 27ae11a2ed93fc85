"""A keeper runs the program for the agent, in its own container, and nothing else for nobody else."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.mps import control, steps, supervisor
from deviceplugin.mps.control import Control, ControlError
from deviceplugin.mps.daemon_files import DaemonFiles
from gpushare.daemon import shutdown
from tests.deviceplugin import simulated

PROGRAM = simulated.BUILD / "nvidia-cuda-mps-control"
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
SPEC = steps.Spec(UUID, (steps.MpsGpu(UUID, 0, 40 << 30, 4),))


@pytest.fixture
async def socket(simulation: None, short_path: Path) -> AsyncIterator[Path]:
    """Where a keeper listens."""
    path = short_path / "mps" / "keeper.sock"
    daemon = shutdown.Daemon()
    serving = asyncio.create_task(supervisor.serve(path, PROGRAM, daemon))
    async with asyncio.timeout(10):
        while not path.exists():  # noqa: ASYNC110 - it tells nobody here
            await asyncio.sleep(0.01)
    yield path
    daemon.stop("the test is over")
    await serving
    assert not path.exists()


async def test_a_daemon_is_started_and_ended_through_it(socket: Path) -> None:
    files = DaemonFiles(socket.parent, UUID)
    files.pipe.mkdir(parents=True)
    files.log.mkdir()
    control = Control(socket, steps.environment(SPEC, files))
    assert not await control.answers()
    await control.start()
    try:
        assert await control.answers()
        assert files.pid_file.exists()
    finally:
        await control.send("quit")


def test_only_root_may_ask(short_path: Path) -> None:
    with supervisor.listening(short_path / "keeper.sock"):
        assert stat.S_IMODE((short_path / "keeper.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"[]\n",
        json.dumps({"arguments": ["-d", "-x"], "environment": {}, "commands": ""}).encode() + b"\n",
        json.dumps({"arguments": ["-d"], "environment": {"LD_PRELOAD": "/x"}, "commands": ""}).encode() + b"\n",
    ],
)
async def test_what_no_agent_asks_is_not_run(socket: Path, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(line)
    async with asyncio.timeout(10):
        outcome = json.loads(await reader.readline())
    writer.close()
    assert outcome["problem"].startswith("was not run: ")


async def test_a_keeper_that_is_not_there_is_a_sentence(short_path: Path) -> None:
    control = Control(short_path / "keeper.sock", {})
    with pytest.raises(ControlError, match="cannot be run"):
        await control.start()


def test_a_call_is_read_as_it_was_written() -> None:
    call = control.DaemonCall(("-d",), {"CUDA_MPS_PIPE_DIRECTORY": "/x"}, "quit\n")
    assert control.decode(control.encode(call)) == call
