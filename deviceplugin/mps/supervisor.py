"""Runs `nvidia-cuda-mps-control`: to start MPS daemons and to send them commands.

A daemon ends with the container that it was started in. So that it outlives the agent, a keeper in another container
can run the program for the agent (`DESCRIPTION`). It listens on a socket: one JSON line in, one out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import socket as sockets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from deviceplugin.host import kernel_process
from deviceplugin.mps import pipe, steps
from gpushare import contract
from gpushare.daemon import lifecycle

logger = logging.getLogger(__name__)

SECONDS: Final = 15.0
KILL_SECONDS: Final = 1.0
CONNECT_SECONDS: Final = 1.0
READ_SECONDS: Final = 5.0
MAX_BYTES: Final = 1 << 20  # per line
MAX_OUTPUT_BYTES: Final = 1 << 17  # six times as many characters in JSON, at most
DESCRIPTION: Final = (
    "`python -m deviceplugin.mps.supervisor`: starts MPS daemons in its own container, so they outlive the agent's. It "
    "has no state: the agent sends the arguments, and the supervisor runs one program only. The socket belongs to "
    "root, so only root can connect."
)
_MULTI_USER: Final = ("-d", "-multiuser-server")
_STATIC: Final = (*_MULTI_USER, "-S")
_ARGUMENTS: Final = ((), ("-d",), _MULTI_USER, _STATIC)
ALIVE: Final = "get_default_active_thread_percentage"  # every version has this command, and it changes nothing


class ControlError(Exception):
    """The program could not be run, or the daemon did not answer; the message gives the command and the remedy."""


class Control:
    """Starts one MPS daemon and sends it commands. `environment` is the daemon's, and names its pipe directory.

    program: `nvidia-cuda-mps-control`, or the socket of a keeper that runs it.
    """

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        self.program = program
        self._environment = dict(environment)

    async def start(self, *, multi_user: bool = False, static: bool = False) -> None:
        """Start the daemon in the background. Raises ControlError.

        multi_user: serve all users at once. static: do so, and run clients in static SM partitions only.
        """
        arguments = _STATIC if static else _MULTI_USER if multi_user else ("-d",)
        try:
            await self._run(arguments, "", self._environment)
        except ControlError as error:
            if arguments == ("-d",):
                raise
            remedy = f"if the keeper is of an older release, delete its pod; {arguments[-1]} needs a driver that has it"
            raise ControlError(f"{error}: {remedy}") from error

    async def send(self, command: str) -> str:
        """Send a command and return the daemon's answer. Raises ControlError."""
        try:
            with pipe.linked(Path(self._environment[contract.ENV_MPS_PIPE])) as private:
                environment = {**self._environment, contract.ENV_MPS_PIPE: str(private)}
                return await self._run((), f"{command}\n", environment)
        except OSError as error:
            raise ControlError(f"{command} was not sent: {error}") from error

    async def answers(self) -> bool:
        try:
            await self.send(ALIVE)
        except ControlError:
            return False
        return True

    async def _run(self, arguments: tuple[str, ...], commands: str, environment: Mapping[str, str]) -> str:
        shown = f"{self.program} {' '.join(arguments) or commands.strip()}"
        outcome = await run(self.program, DaemonCall(arguments, environment, commands))
        if outcome.problem:
            raise ControlError(f"{shown} {outcome.problem}")
        if outcome.code != 0:
            raise ControlError(f"{shown} failed ({outcome.code}): {outcome.output or 'without output'}")
        return outcome.output


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonCall:
    """A run of the program. commands: its input."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    commands: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a run. problem: why the program could not be run, or ""."""

    code: int = 0
    output: str = ""
    problem: str = ""


async def run(program: Path, call: DaemonCall) -> CallResult:
    """Run the program, or have the keeper run it if `program` is a socket."""
    is_keeper = program.is_socket()  # noqa: ASYNC240 - one quick call
    try:
        async with asyncio.timeout(SECONDS):
            return await (_run_by_keeper(program, call) if is_keeper else _run(program, call))
    except TimeoutError:
        return CallResult(problem=f"took longer than {SECONDS:.0f} s: the daemon hangs")


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
        return CallResult(problem=f"cannot be run ({error.strerror}): it comes with the driver; give its full path")
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    try:
        process.stdin.write(call.commands.encode())
        process.stdin.close()
        try:
            await process.stdout.readexactly(MAX_OUTPUT_BYTES + 1)
        except asyncio.IncompleteReadError as error:
            output = error.partial
        else:
            process.kill()
            while await process.stdout.read(MAX_OUTPUT_BYTES):  # else `wait` never returns
                pass
            why = "a client may have replaced the daemon's socket: end the GPU's clients"
            return CallResult(problem=f"answered more than {MAX_OUTPUT_BYTES >> 10} KiB: {why}")
        await process.wait()
    finally:
        await end(process)
    return CallResult(process.returncode or 0, output.decode(errors="replace").strip())


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a process that still runs. It may survive that for as long as it hangs in the driver."""
    if process.returncode is None:
        process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()


async def _run_by_keeper(keeper: Path, call: DaemonCall) -> CallResult:
    try:
        reader, writer = await asyncio.open_unix_connection(keeper, limit=MAX_BYTES)
        try:
            writer.write(encode(call))
            document = _document(await reader.readline())
        finally:
            writer.close()
        return CallResult(int(document["code"]), str(document["output"]), str(document["problem"]))
    except (OSError, ValueError, KeyError) as error:
        return CallResult(problem=f"cannot be run, as the keeper of MPS daemons does not answer there: {error}")


def encode(message: DaemonCall | CallResult) -> bytes:
    return f"{json.dumps(dataclasses.asdict(message))}\n".encode()


def decode(line: bytes) -> DaemonCall:
    """Parse a line. Raises ValueError for anything but a call that agents make."""
    document = _document(line)
    call = DaemonCall(
        tuple(map(str, document.get("arguments", ()))),
        {str(name): str(value) for name, value in dict(document.get("environment", {})).items()},
        str(document.get("commands", "")),
    )
    if call.arguments not in _ARGUMENTS or not call.environment.keys() <= steps.VARIABLES:
        raise ValueError(f"{call.arguments} with variables {sorted(call.environment)} is not a call that agents make")
    return call


def _document(line: bytes) -> dict[str, Any]:
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - of JSON, so a wrong value
    return document


def starter(program: Path) -> int | None:
    """Return the PID of the process that starts daemons: this one, or the keeper; None if it is down. Blocking."""
    if not program.is_socket():
        return os.getpid()
    with sockets.socket(sockets.AF_UNIX) as connection:
        connection.settimeout(CONNECT_SECONDS)
        try:
            connection.connect(str(program))
            keeper = kernel_process.peer(connection)
        except OSError:
            return None
    os.close(keeper.pidfd)
    return keeper.pid


async def serve(socket: Path, program: Path, daemon: lifecycle.Daemon) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                line = await reader.readline()
            if not line:  # the agent only reads the PID of this process
                writer.close()
                return
            call = decode(line)
            outcome = await run(program, call)
            extra = {"arguments": call.arguments, "commands": call.commands, "code": outcome.code}
            logger.info("Ran the control program", extra=extra)
        except (TimeoutError, ValueError) as error:
            outcome = CallResult(problem=f"was not run: {error}")
        try:
            writer.write(encode(outcome))
            await writer.drain()
            writer.close()
        except ConnectionError as error:
            logger.warning("The agent has closed the connection", extra={"err": str(error)})

    server = await asyncio.start_unix_server(answer, sock=listening(socket), limit=MAX_BYTES)
    logger.info("Serving", extra={"socket": str(socket), "program": str(program)})
    try:
        await daemon.stopping.wait()
    finally:
        server.close()
        os.unlink(socket)  # noqa: PTH108


def listening(path: Path) -> sockets.socket:
    """Return a listening socket that only root can connect to, from its creation on."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    made = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        made.bind(str(path))
    finally:
        os.umask(before)
    return made


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m deviceplugin.mps.supervisor", description=DESCRIPTION)
    parser.add_argument("--socket", type=Path, required=True, help="socket that the agent connects to")
    parser.add_argument("--program", type=Path, default=Path("/usr/bin/nvidia-cuda-mps-control"), help="(%(default)s)")
    options = parser.parse_args(arguments)
    lifecycle.configure_logs("info", "mps-keeper")
    return lifecycle.run(lambda daemon: serve(options.socket, options.program, daemon))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
