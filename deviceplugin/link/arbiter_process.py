"""The arbiter's process: started with the agent, and gone with it, whoever of the two ends first.

An agent whose arbiter has ended ends as well. The kubelet starts it again, ever more slowly if that goes on, and the
next two take over what these left: that is one way back for whatever has happened, and the one that upgrades take.
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
    """The arbiter's process does not do its work; the message says how that is known."""


class ArbiterProcess:
    """A process that runs; `channel` is the way to it."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self._process = process
        self.channel = channel

    @property
    def pid(self) -> int:
        """The process id of the arbiter, as the agent sees it."""
        return self._process.pid

    async def watched(self) -> None:
        """Wait until it ends, which it should not; raises ArbiterError."""
        code = await self._process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise ArbiterError(f"the arbiter's process has ended {how}: the agent ends too, and both are started again")

    async def end(self) -> None:
        """Let it end, and see to it."""
        self.channel.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            logger.error("The arbiter's process does not end: killing it", extra={"pid": self.pid})  # noqa: TRY400
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
    """An arbiter whose socket will be at `path`; other arguments are those of `python -m deviceplugin.arbiter`.

    A new interpreter and no fork: the agent has threads, and many modules that an arbiter has no use for.
    """
    socket_server.raised_limit()  # of each share two files are open here as well
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
