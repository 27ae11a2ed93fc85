"""The keeper runs NVIDIA's program for the agent in its own container, and runs nothing else."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.mps import steps, supervisor
from deviceplugin.mps.steps import DaemonFiles
from deviceplugin.mps.supervisor import Control, ControlError
from tests.deviceplugin import simulated
from tests.deviceplugin.mps import keepers

PROGRAM = simulated.BUILD / "nvidia-cuda-mps-control"
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
SPEC = steps.Spec(UUID, (steps.MpsGpu(UUID, 0, 40 << 30, 4),))


@pytest.fixture
async def socket(simulation: None, short_path: Path) -> AsyncIterator[Path]:
    """Yield the socket of a running keeper."""
    path = short_path / "mps" / "keeper.sock"
    async with keepers.running(path, PROGRAM):
        yield path
    assert not path.exists()


async def test_the_keeper_starts_and_stops_a_daemon(socket: Path) -> None:
    files = DaemonFiles(socket.parent, UUID)
    files.pipe.mkdir(parents=True)
    files.log.mkdir()
    supervisor = Control(socket, steps.environment(SPEC, files))
    assert not await supervisor.answers()
    await supervisor.start()
    try:
        assert await supervisor.answers()
        assert files.pid_file.exists()
    finally:
        await supervisor.send("quit")


def test_only_root_can_connect(short_path: Path) -> None:
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
async def test_anything_but_an_agents_call_is_not_run(socket: Path, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(line)
    async with asyncio.timeout(10):
        outcome = json.loads(await reader.readline())
    writer.close()
    assert outcome["problem"].startswith("was not run: ")


async def test_a_missing_keeper_is_an_error(short_path: Path) -> None:
    supervisor = Control(short_path / "keeper.sock", {})
    with pytest.raises(ControlError, match="cannot be run"):
        await supervisor.start()


async def test_an_endless_answer_is_not_kept(tmp_path: Path) -> None:
    """Root in a client's container can answer in the daemon's place."""
    program = tmp_path / "control"
    program.write_text("#!/bin/sh\nexec yes\n")
    program.chmod(0o755)
    outcome = await supervisor.run(program, supervisor.DaemonCall((), {}, "get_server_list\n"))
    assert outcome.problem.startswith("answered more than 128 KiB: ")
    program.write_text("#!/bin/sh\nhead -c 100000 /dev/zero\n")
    outcome = await supervisor.run(program, supervisor.DaemonCall((), {}, "get_server_list\n"))
    assert outcome.output == "\0" * 100_000
    assert len(supervisor.encode(outcome)) < supervisor.MAX_BYTES


async def test_an_older_keeper_serves_no_shares(short_path: Path) -> None:
    """It is replaced by hand, so it may be of another release than the agent; one user at a time would be no share."""
    refusal = supervisor.encode(supervisor.CallResult(problem="was not run: it is not a call that agents make"))

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(refusal if b"multiuser" in await reader.readline() else supervisor.encode(supervisor.CallResult()))
        writer.close()

    async with await asyncio.start_unix_server(refuse, short_path / "keeper.sock"):
        control = Control(short_path / "keeper.sock", {})
        await control.start()
        with pytest.raises(ControlError, match="if the keeper is of an older release, delete its pod"):
            await control.start(multi_user=True)


def test_a_call_is_decoded_as_it_was_encoded() -> None:
    call = supervisor.DaemonCall(("-d",), {"CUDA_MPS_PIPE_DIRECTORY": "/x"}, "quit\n")
    assert supervisor.decode(supervisor.encode(call)) == call
