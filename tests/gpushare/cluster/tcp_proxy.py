"""A TCP relay on loopback that simulates a bad network: it can reset connections, stall, or refuse them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib import parse

import yaml


class Proxy:
    """A relay to `target` (host, port).

    connections: the number of connections accepted so far.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._refusing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.passing = asyncio.Event()
        self.passing.set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def cut(self) -> None:
        """Reset all open connections; accept new ones."""
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self, refusing: bool = True) -> None:
        """Reset all open connections, and every new one from then on."""
        self._refusing = refusing
        self.cut()

    def hold(self) -> None:
        """Stop relaying in both directions without closing any connection."""
        self.passing.clear()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if not self._refusing:
                await self._connect(reader, writer)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._writers.add(there_writer)
        relays = [self._relay(reader, there_writer), self._relay(there_reader, writer)]
        tasks = [asyncio.create_task(relay) for relay in relays]
        try:
            # When one direction ends, end both: TLS cannot use half a connection.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            there_writer.transport.abort()
            self._writers.discard(there_writer)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self.passing.wait()
                sink.write(data)
                await sink.drain()


@contextlib.asynccontextmanager
async def before(server: str) -> AsyncIterator[Proxy]:
    """Run a relay to the server of a URL."""
    address = parse.urlsplit(server)
    proxy = Proxy((address.hostname or "127.0.0.1", address.port or 443))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def kubeconfig_through(kubeconfig: Path, port: int, target: Path, **user: Any) -> str:
    """Write a copy of a kubeconfig that connects to another port, optionally as another user."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    host = cluster["server"].removeprefix("https://").rsplit(":", 1)[0]
    cluster |= {"server": f"https://127.0.0.1:{port}", "tls-server-name": host}
    if user:
        config["users"][0]["user"] = user
    target.write_text(yaml.safe_dump(config))
    return str(target)
