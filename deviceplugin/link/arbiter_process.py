"""The arbiter's process, which starts with the agent and ends with it, whichever ends first.

An agent whose arbiter has ended ends too. The kubelet restarts it, with backoff, and the next two processes take over
the state. So there is one way of recovery for all failures, and upgrades use it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from deviceplugin.arbiter import socket_server
from deviceplugin.arbiter.channel import Channel

logger = logging.getLogger(__name__)

END_SECONDS: Final = 5.0
PROGRAM: Final = ("-m", "deviceplugin.arbiter")


class ArbiterError(Exception):
    """The arbiter's process has failed; the message says how."""


class ArbiterProcess:
    """A running arbiter, and the `channel` to it."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self._process = process
        self.channel = channel

    @property
    def pid(self) -> int:
        """The arbiter's process id."""
        return self._process.pid

    async def watched(self) -> None:
        """Wait for the process, which should not end, and raise ArbiterError."""
        code = await self._process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise ArbiterError(f"the arbiter's process has ended {how}: the agent exits too, and both are restarted")

    async def end(self) -> None:
        """Close the channel, and wait until the process has ended; kill it if that takes too long."""
        self.channel.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            logger.error("The arbiter's process does not end in time: killing it", extra={"pid": self.pid})  # noqa: TRY400
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def running(
    path: Path,
    *,
    ledgers: Path,
    proc: Path,
    log_level: str,
    registered: int | None = None,
    program: Sequence[str] = PROGRAM,
) -> AsyncIterator[ArbiterProcess]:
    """Run an arbiter with its socket at `path`. The other arguments are those of `python -m deviceplugin.arbiter`.

    A new interpreter rather than a fork: the agent has threads, and many modules that the arbiter does not need.
    """
    socket_server.raise_file_limit()  # the agent has two open files per share
    ours, theirs = socket.socketpair()
    maps = [registered] if registered is not None else []
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *program),
            *(f"--agent={theirs.fileno()}", f"--socket={path}", f"--ledgers={ledgers}"),
            *(f"--proc-root={proc}", f"--log-level={log_level}"),
            *(f"--registered={descriptor}" for descriptor in maps),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *maps],
        )
    started = ArbiterProcess(process, Channel(ours))
    logger.info("Started the arbiter", extra={"pid": started.pid})
    try:
        yield started
    finally:
        await started.end()
