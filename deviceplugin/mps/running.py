"""Runs `nvidia-cuda-mps-control`, here or in the container of a keeper.

A daemon ends with the container that it was started in. So that it outlives the agent, a keeper runs in a container of
its own, beside the agent, and starts the program there when it is asked on its socket: one JSON line in, one out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from deviceplugin.host import kernel_process
from deviceplugin.mps import steps

SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 1.0
MAX_BYTES: Final = 1 << 20  # of a line
_ARGUMENTS: Final = ((), ("-d",))


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonCall:
    """arguments: of the program; commands: what it reads."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    commands: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CallResult:
    """What became of it. problem: why it could not be run; empty if it was."""

    code: int = 0
    output: str = ""
    problem: str = ""


async def run(program: Path, call: DaemonCall) -> CallResult:
    """Run it; where `program` is a socket, by the keeper that listens there."""
    is_keeper = _is_socket(program)
    try:
        async with asyncio.timeout(SECONDS):
            return await (_asked(program, call) if is_keeper else _run(program, call))
    except TimeoutError:
        return CallResult(problem=f"took longer than {SECONDS:.0f} s: the daemon hangs")


def starter(program: Path) -> int | None:
    """The pid of the process that starts daemons: this one, or the keeper; None if that does not answer. Blocking."""
    if not program.is_socket():
        return os.getpid()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONNECT_SECONDS)
        try:
            connection.connect(str(program))
            keeper = kernel_process.peer(connection)
        except OSError:
            return None
    os.close(keeper.pidfd)
    return keeper.pid


def write(call: DaemonCall) -> bytes:
    """A call as a line."""
    return f"{json.dumps(dataclasses.asdict(call))}\n".encode()


def read(line: bytes) -> DaemonCall:
    """A call from a line. Raises ValueError for anything but what an agent asks."""
    document = _document(line)
    call = DaemonCall(
        tuple(map(str, document.get("arguments", ()))),
        {str(name): str(value) for name, value in dict(document.get("environment", {})).items()},
        str(document.get("commands", "")),
    )
    if call.arguments not in _ARGUMENTS or not call.environment.keys() <= steps.VARIABLES:
        raise ValueError(f"{call.arguments} with variables {sorted(call.environment)} is nothing that an agent asks")
    return call


async def _run(program: Path, call: DaemonCall) -> CallResult:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *call.arguments,
            env=dict(call.environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        return CallResult(problem=f"cannot be run ({error.strerror}): it comes with the driver, name it by its path")
    try:
        output, _ = await process.communicate(call.commands.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return CallResult(process.returncode or 0, output.decode(errors="replace").strip())


async def _asked(keeper: Path, call: DaemonCall) -> CallResult:
    try:
        reader, writer = await asyncio.open_unix_connection(keeper, limit=MAX_BYTES)
        try:
            writer.write(write(call))
            document = _document(await reader.readline())
        finally:
            writer.close()
        return CallResult(int(document["code"]), str(document["output"]), str(document["problem"]))
    except (OSError, ValueError, KeyError) as error:
        return CallResult(problem=f"cannot be run, as the keeper of MPS daemons does not answer there: {error}")


def _is_socket(path: Path) -> bool:
    return path.is_socket()


def _document(line: bytes) -> dict[str, Any]:
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - of JSON, so a wrong value
    return document
