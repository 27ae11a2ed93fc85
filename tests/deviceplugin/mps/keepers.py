"""A keeper of MPS daemons, in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from deviceplugin.mps import supervisor
from gpushare.daemon import lifecycle


@contextlib.asynccontextmanager
async def running(socket: Path, program: Path) -> AsyncIterator[None]:
    """Run a keeper that answers on this socket."""
    daemon = lifecycle.Daemon()
    serving = asyncio.create_task(supervisor.serve(socket, program, daemon))
    async with asyncio.timeout(10):
        while not socket.exists():  # noqa: ASYNC110, ASYNC240 - it tells nobody here
            await asyncio.sleep(0.01)
    try:
        yield
    finally:
        daemon.stop("the test is over")
        await serving
