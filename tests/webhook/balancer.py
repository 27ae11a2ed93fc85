"""A load balancer in front of the replicas, as a Service is: one address, each connection to the next live replica."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator


class Balancer:
    """Forwards TCP; `ports` may change while it runs."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.port = 0
        self.connections = 0
        self._turn = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def send_to(self, *ports: int) -> None:
        """Use these replicas from now on, and close connections to others, which clients would keep using."""
        self.ports[:] = ports
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    async def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        ready.set()
        await stop.wait()
        server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            await self._forward_to_next(reader, writer)
        finally:
            self._open.discard(writer)

    async def _forward_to_next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(len(self.ports)):
            port = self.ports[next(self._turn) % len(self.ports)]
            try:
                upstream = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            try:
                await asyncio.gather(_copy(reader, upstream[1]), _copy(upstream[0], writer))
            except asyncio.CancelledError:
                for end in (upstream[1], writer):
                    end.transport.abort()
                raise
            return
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def _end_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)  # until their sockets are closed


@contextlib.contextmanager
def running() -> Iterator[Balancer]:
    balancer, ready = Balancer(), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        loop.run_until_complete(balancer.serve(ready, stop))
        loop.run_until_complete(_end_the_others())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield balancer
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
