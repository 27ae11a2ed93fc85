"""The arbiter's socket, and which connections it accepts.

All share containers of the node mount this one socket, so no set of containers may use it up. A container can have as
many connections as its ledger has slots, but only half of all connections are first come, first served. The other half
is reserved for containers with few connections, so that more containers than a node has get some each. The total stays
within the limit of open files. Clients that are not in a container of a pod are rejected at once; the kernel says who
they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from deviceplugin.arbiter import wire
from deviceplugin.arbiter.client_connection import ClientConnection, ConnectionLimits, RateLimiter, ShareLookup
from deviceplugin.arbiter.scheduling.leases import Leases
from deviceplugin.arbiter.share_ledgers import ShareLedgers
from deviceplugin.host import kernel_process
from deviceplugin.host.kernel_process import Container
from gpushare import contract
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

# A client that connects and leaves keeps its place in the backlog until it is accepted, and all later ones wait behind
# it. Clients that do not fit into the backlog are served in order by the kernel.
BACKLOG: Final = 32
ACCEPTS_A_TURN: Final = 16
ACCEPTS_PER_SECOND: Final = 1000.0
ACCEPT_BURST: Final = 4096
MAX_CONNECTIONS: Final = 8192
DESCRIPTORS_A_CONNECTION: Final = 3  # the socket, its pidfd, and the pidfd of its slot
OTHER_DESCRIPTORS: Final = 512
CONTAINERS: Final = 512  # that always get connections; a node has 110 pods by default
FULL_PAUSE_SECONDS: Final = 0.1
REJECTED_SECONDS: Final = 1.0  # for rejected clients to send the message that they are about to send
MAX_REJECTED: Final = 256

Identify = Callable[[int], Container | Refusal]


def by_cgroup(proc: Path = kernel_process.PROC) -> Identify:
    def identify(pid: int) -> Container | Refusal:
        try:
            return kernel_process.container_of(kernel_process.cgroups(pid, proc=proc))
        except OSError:
            return Refusal("this process has ended")

    return identify


@dataclasses.dataclass(eq=False)
class Server:
    """The socket at `path`, as a context manager.

    The socket is bound under another name and then renamed, so a client finds the old socket, the new one, or, after
    the arbiter has ended, none.
    """

    path: Path
    _: dataclasses.KW_ONLY
    lookup: ShareLookup
    ledgers: ShareLedgers
    identify: Identify
    proc: Path = kernel_process.PROC

    def __post_init__(self) -> None:
        self._connections: set[ClientConnection] = set()
        self._limits = ConnectionLimits(time.monotonic)
        self.leases = Leases()
        self._accepts = RateLimiter(per_second=ACCEPTS_PER_SECOND, burst=ACCEPT_BURST)
        self._paused: asyncio.TimerHandle | None = None
        self._rejected: dict[socket.socket, asyncio.TimerHandle] = {}
        self.turned_away = 0
        # Called with the container and the reason when a library speaks no supported protocol version.
        self.on_library_refused: Callable[[Container, str], None] = lambda *_: None

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def versions(self) -> Mapping[int, int]:
        """The number of connections by protocol version. Connections that have not sent HELLO are left out."""
        return Counter(connection.version for connection in self._connections if connection.version is not None)

    async def __aenter__(self) -> Server:
        self._most = min(MAX_CONNECTIONS, (raise_file_limit() - OTHER_DESCRIPTORS) // DESCRIPTORS_A_CONNECTION)
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        self._socket.bind(str(fresh))
        fresh.chmod(0o666)  # containers run as any user; the kernel identifies the client
        self._socket.listen(BACKLOG)
        self._inode = fresh.stat().st_ino
        fresh.replace(self.path)
        self._loop.add_reader(self._socket, self._acceptable)
        logger.info("Listening", extra={"socket": str(self.path), "most_connections": self._most})
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.remove_reader(self._socket)
        if self._paused is not None:
            self._paused.cancel()
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        # Close the leases first. Otherwise each closed connection would grant the next client a lease.
        self.leases.close()
        for connection in list(self._connections):
            connection.close()
        for connected in list(self._rejected):
            self._close_rejected(connected)

    def _acceptable(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                connected, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Most likely out of file descriptors: an immediate retry would only burn CPU.
                logger.warning("Could not accept a connection", extra={"err": str(error)})
                self._pause(FULL_PAUSE_SECONDS)
                return
            connected.setblocking(False)
            self._admit(connected)
            wait_seconds = self._accepts.take(time.monotonic())
            if wait_seconds:
                self._pause(wait_seconds)
                return

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket)
        self._paused = self._loop.call_later(seconds, self._loop.add_reader, self._socket, self._acceptable)

    def _admit(self, connected: socket.socket) -> None:
        try:
            who = kernel_process.peer(connected, proc=self.proc)
        except OSError as error:
            self._reject(connected, str(error))
            return
        container = self.identify(who.pid)
        if who.is_dead():
            # The cgroup may be another process's, which has got this pid since.
            reason = "this process has ended"
        elif isinstance(container, Refusal):
            reason = str(container)
        elif (count := self._limits.connections(container)) >= contract.LEDGER_SLOTS:
            reason = f"this container already has {contract.LEDGER_SLOTS} connections to the node's agent"
        elif count >= max(1, self._most // 2 // CONTAINERS) and len(self._connections) >= self._most // 2:
            reason = (
                f"the node's agent has {len(self._connections)} connections and reserves the rest for "
                f"containers with fewer than the {count} of this one"
            )
        elif len(self._connections) >= self._most:
            reason = f"the node's agent has {self._most} connections, which is the maximum"
        else:
            self._connections.add(
                ClientConnection(
                    connected,
                    who=who,
                    container=container,
                    limits=self._limits.connect(container),
                    leases=self.leases,
                    lookup=self.lookup,
                    ledgers=self.ledgers,
                    closed=self._remove,
                    on_library_refused=lambda *what: self.on_library_refused(*what),
                )
            )
            return
        os.close(who.pidfd)
        self._reject(connected, reason)

    def _reject(self, connected: socket.socket, reason: str) -> None:
        self.turned_away += 1
        logger.debug("Rejected a connection", extra={"err": reason})
        with contextlib.suppress(OSError):
            connected.send(wire.refused(reason), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        if len(self._rejected) >= MAX_REJECTED:
            connected.close()
            return
        # Closing a socket with unread data sends a reset, and the client would lose the reason.
        timer = self._loop.call_later(REJECTED_SECONDS, self._close_rejected, connected)
        self._rejected[connected] = timer
        self._loop.add_reader(connected, self._close_rejected, connected)

    def _close_rejected(self, connected: socket.socket) -> None:
        self._rejected.pop(connected).cancel()
        self._loop.remove_reader(connected)
        with contextlib.suppress(OSError), connected:
            connected.recv(contract.WIRE_MAX)

    def _remove(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        self._limits.disconnect(connection.container)


def raise_file_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
