"""Serves the Service `kubernetes` without a kube-proxy: forwards connections to the API server.

The API server listens on loopback, which pods cannot reach. This process listens in a network namespace on the pods'
bridge, and connects to the API server from the machine's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import component, daemon_process, lab_layout, network

NAME = "service-kubernetes"
PORT = 443
CLONE_NEWNET = 0x40000000  # from sched.h
READ_BYTES = 1 << 16
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Listening:
    """Ready when a TCP port accepts a connection."""

    address: str
    port: int

    def answers(self) -> bool:
        """Check once whether the port accepts a connection."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.address, self.port), component.ANSWER_SECONDS),
        ):
            return True
        return False


def build(lab: lab_layout.Layout) -> component.Component:
    """Return the relay of a lab with nodes."""
    where = (str(network.service_namespace(lab)), lab.service_address, lab.address, str(lab.api_port))
    daemon = daemon_process.Process(
        NAME, (sys.executable, "-m", "lab.kubernetes_service", *where), directory=REPOSITORY
    )
    return component.Component(daemon, Listening(lab.service_address, PORT))


def listening(namespace: Path, address: str) -> socket.socket:
    """Return a socket that listens in another network namespace; this thread stays in its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as home, namespace.open() as there:
        _enter(libc, there.fileno())
        try:
            return socket.create_server((address, PORT), backlog=512)
        finally:
            _enter(libc, home.fileno())


async def relay(listener: socket.socket, host: str, port: int) -> None:
    """Serve forever: open one connection to the API server per client connection."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there = await asyncio.open_connection(host, port)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, there[1]))
                both.create_task(_pump(there[0], writer))

    server = await asyncio.start_server(accept, sock=listener)
    await server.serve_forever()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await source.read(READ_BYTES):
                sink.write(data)
                await sink.drain()
    finally:
        sink.close()


def _enter(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    namespace, address, host, port = sys.argv[1:]
    asyncio.run(relay(listening(Path(namespace), address), host, int(port)))
