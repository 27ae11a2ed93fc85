"""`python -m deviceplugin.mps.supervisor`: starts MPS daemons in its own container, so they outlive the agent's.

It has no state: the agent sends the arguments, and the supervisor runs one program only. The socket belongs to root, so
only root can connect.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import socket as sockets
import sys
from pathlib import Path
from typing import Final

from deviceplugin.mps import control
from gpushare.daemon import lifecycle

logger = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0


async def serve(socket: Path, program: Path, daemon: lifecycle.Daemon) -> None:
    """Serve until `daemon` stops."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                line = await reader.readline()
            if not line:  # the agent only reads the PID of this process
                writer.close()
                return
            call = control.decode(line)
            outcome = await control.run(program, call)
            logger.info(
                "Ran the control program",
                extra={"arguments": call.arguments, "commands": call.commands, "code": outcome.code},
            )
        except (TimeoutError, ValueError) as error:
            outcome = control.CallResult(problem=f"was not run: {error}")
        try:
            writer.write(f"{json.dumps(dataclasses.asdict(outcome))}\n".encode())
            await writer.drain()
            writer.close()
        except ConnectionError as error:
            logger.warning("The agent has closed the connection", extra={"err": str(error)})

    bound = listening(socket)
    server = await asyncio.start_unix_server(answer, sock=bound, limit=control.MAX_BYTES)
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
    """Run until stopped; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deviceplugin.mps.supervisor", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="socket that the agent connects to")
    parser.add_argument("--program", type=Path, default=Path("/usr/bin/nvidia-cuda-mps-control"), help="(%(default)s)")
    options = parser.parse_args(arguments)
    lifecycle.configure_logs("info", "mps-keeper")
    return lifecycle.run(lambda daemon: serve(options.socket, options.program, daemon))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
