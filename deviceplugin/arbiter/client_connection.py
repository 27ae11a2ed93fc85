"""One client's connection, HELLO first, then messages about leases and memory; and the limits of its container.

No client can delay another one. Malformed messages end the connection. Message types that only newer libraries know are
ignored. Messages that arrive too fast are read later, so that only their sender waits. A client that does not read its
answers is disconnected. All connections of a container share one rate limit, which is remembered for a while after the
last connection; otherwise more connections, or new ones, would buy a higher rate.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol

from deviceplugin.arbiter import wire
from deviceplugin.arbiter.scheduling.leases import Leases
from deviceplugin.arbiter.share_ledger import JoinError, ShareLedger
from deviceplugin.arbiter.share_ledgers import ShareLedgers
from deviceplugin.arbiter.tenant import Tenant
from deviceplugin.host.kernel_process import Container, KernelProcess
from gpushare import contract
from gpushare.refusal import Refusal

logger = logging.getLogger(__name__)

HELLO_SECONDS: Final = 10.0
OLD_LIBRARY: Final = "the library in this container is too old for a share with the isolation"
MESSAGES_A_TURN: Final = 8
MESSAGES_PER_SECOND: Final = 200.0
LEASE_MESSAGES_PER_SECOND: Final = 2000.0  # per container: five hundred turns
MESSAGE_BURST: Final = 2048
MAX_RECLAIMS: Final = 1024  # of a process, unanswered: each thread asks one
LINES_PER_SECOND: Final = 1.0  # in the log, which all containers share
LINE_BURST: Final = 1024  # two for each process that a container can have
# After this time every rate limiter is as good as new.
FORGOTTEN_SECONDS: Final = max(2 * MESSAGE_BURST / MESSAGES_PER_SECOND, LINE_BURST / LINES_PER_SECOND)


class RateLimiter:
    """Allows `burst` events at once and `per_second` in the long run. Pure: times are in seconds, on one clock.

    Its only state is the time at which the next event would be due if all came evenly. An event that comes early must
    wait, each one longer than the one before it.
    """

    def __init__(self, *, per_second: float, burst: int) -> None:
        self._interval = 1.0 / per_second
        self._ahead = burst * self._interval
        self._due = float("-inf")

    def take(self, now: float) -> float:
        """Count one event. Return the seconds that it should have waited, 0 if it is in time."""
        self._due = max(self._due, now - self._ahead) + self._interval
        return max(0.0, self._due - now)


class ConnectedContainer:
    """The connections and the rate limiters of one container."""

    def __init__(self) -> None:
        self.connections = 0
        self.left_seconds = 0.0  # when the last connection was closed
        self.messages = RateLimiter(per_second=MESSAGES_PER_SECOND, burst=MESSAGE_BURST)
        self.lease_messages = RateLimiter(per_second=LEASE_MESSAGES_PER_SECOND, burst=MESSAGE_BURST)
        self._lines = RateLimiter(per_second=LINES_PER_SECOND, burst=LINE_BURST)
        self._silent_until = float("-inf")
        self._suppressed = 0

    def suppressed_lines(self, now: float) -> int | None:
        """Return how many log lines were suppressed before this one, or None to suppress this one too."""
        if now < self._silent_until:
            self._suppressed += 1
            return None
        self._silent_until = now + self._lines.take(now)
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


class ConnectionLimits:
    """The containers that are connected, or were until recently. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[Container, ConnectedContainer] = {}

    def connections(self, container: Container) -> int:
        return self._known[container].connections if container in self._known else 0

    def connect(self, container: Container) -> ConnectedContainer:
        connected = self._known.setdefault(container, ConnectedContainer())
        connected.connections += 1
        return connected

    def disconnect(self, container: Container) -> None:
        connected = self._known[container]
        connected.connections -= 1
        if not connected.connections:
            connected.left_seconds = self._clock()
            since = connected.left_seconds - FORGOTTEN_SECONDS
            self._known = {key: old for key, old in self._known.items() if old.connections or old.left_seconds > since}


class ShareLookup(Protocol):
    """A source of the containers' shares."""

    async def tenant(self, container: Container) -> Tenant | Refusal: ...


@dataclasses.dataclass(eq=False)
class ClientConnection:
    """A connection from a process of `container`. It owns `connected` and the pidfd of `who`."""

    connected: socket.socket
    _: dataclasses.KW_ONLY
    who: KernelProcess
    container: Container
    limits: ConnectedContainer
    leases: Leases
    lookup: ShareLookup
    ledgers: ShareLedgers
    closed: Callable[[ClientConnection], None]
    on_library_refused: Callable[[Container, str], None]

    def __post_init__(self) -> None:
        self.version: int | None = None  # the negotiated protocol version
        self._loop = asyncio.get_running_loop()
        self._share: ShareLedger | None = None
        self._reported_freed_bytes = 0
        self._greeting: asyncio.Task[None] | None = None
        self._measuring: set[asyncio.Task[None]] = set()
        self._reclaiming: list[asyncio.Task[None]] = []  # answers keep the order of the questions
        self._open = True
        self._timer = self._loop.call_later(HELLO_SECONDS, self._end, "no HELLO in time")
        self._loop.add_reader(self.connected, self._readable)

    def close(self) -> None:
        """Close the connection. The process keeps its slot as long as it lives."""
        if not self._open:
            return
        self._open = False
        self._timer.cancel()
        for task in (self._greeting, *self._reclaiming, *self._measuring):
            if task is not None:
                task.cancel()
        self._loop.remove_reader(self.connected)
        self.connected.close()
        self.leases.remove(self)
        if self._share is not None:
            self.ledgers.disconnected(self._share, self.who)
        os.close(self.who.pidfd)
        self.closed(self)

    @property
    def tenant(self) -> Tenant:
        assert self._share is not None  # noqa: S101
        return self._share.tenant

    def send(self, message: bytes) -> None:
        """Send a message. A client that does not read it is disconnected."""
        if self._open:
            self._send(message)

    def refuse(self, sentence: str) -> None:
        self._log(logging.INFO, "Refused a process", err=sentence)
        self._send(wire.refused(sentence))
        self.close()

    def _readable(self) -> None:
        for _ in range(MESSAGES_A_TURN):
            if not self._open:
                return
            try:
                # A longer message is truncated. One byte above the maximum is enough to notice that.
                data = self.connected.recv(contract.WIRE_MAX + 1)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            limiter = self._handle(data)
            wait_seconds = limiter.take(time.monotonic())
            if wait_seconds and self._open:
                self._loop.remove_reader(self.connected)
                self._timer.cancel()
                self._timer = self._loop.call_later(wait_seconds, self._loop.add_reader, self.connected, self._readable)
                return

    def _handle(self, data: bytes) -> RateLimiter:
        """Handle one message, and return the rate limiter that counts it."""
        try:
            kind = wire.read(data)
            said_hello = kind == contract.MESSAGE_HELLO and self.version is None
            hello = wire.hello(data) if said_hello else None
            if self.version is not None:
                wire.check_version(data, self.version)
        except wire.ProtocolVersionError as error:
            has_none_of_ours = self.version is None
            self.version = error.version
            self.refuse(str(error))
            if has_none_of_ours:
                self.on_library_refused(self.container, str(error))
            return self.limits.messages
        except wire.WireError as error:
            self._end(str(error))
            return self.limits.messages
        if self._share is not None and self._share.outdated:
            self.ledgers.confirm_page(self._share, self.who)
        if kind in wire.LEASE_MESSAGES and self._share is not None:
            said = wire.lease(data)
            if said.gpu < len(self._share.tenant.grants):
                self.leases.handle(self, kind, said)
                return self.limits.lease_messages
        if hello is not None:
            self._timer.cancel()
            self.version = hello.version
            self._greeting = self._loop.create_task(self._greet_safely(hello.library))
        elif kind == contract.MESSAGE_RECLAIM and self._share is not None:
            self.ledgers.reap(self._share)
            refused = wire.refused_charge(data)
            if len(self._reclaiming) >= MAX_RECLAIMS:
                self._end("too many unanswered messages")
            elif self._reclaiming or (refused is not None and self._share.tenant.memory_limit_bytes):
                before = self._reclaiming[-1] if self._reclaiming else None
                task = self._loop.create_task(self._lend(self._share, refused, before))
                self._reclaiming.append(task)
                task.add_done_callback(self._reclaiming.remove)
            else:
                self._send_reclaimed(self._share)
        elif kind == contract.MESSAGE_MEASURE and self._share is not None:
            task = self._loop.create_task(self._measure(self._share, wire.lease(data)))
            self._measuring.add(task)
            task.add_done_callback(self._measuring.discard)
        elif kind not in wire.KNOWN and self._share is not None:
            self._log(logging.DEBUG, "Ignored a message", err=f"unknown type {kind}")
        else:
            self._end(f"unexpected message of type {kind}")
        return self.limits.messages

    async def _greet_safely(self, library_version: str) -> None:
        try:
            await self._greet(library_version)
        except Exception:
            logger.exception("Could not answer a process", extra=self._log_fields())
            self.refuse("the node's agent failed to answer: its log says why")

    async def _greet(self, library_version: str) -> None:
        tenant = await self.lookup.tenant(self.container)
        if isinstance(tenant, Tenant) and await self.ledgers.check_exec(tenant, self.who):
            tenant = await self.lookup.tenant(self.container)  # the share may have changed during the check
        if isinstance(tenant, Refusal):
            self.refuse(str(tenant))
            return
        if self.who.is_dead():
            self.close()
            return
        if tenant.isolation in wire.ISOLATIONS and (self.version or 0) < wire.ISOLATION_VERSION:
            self.refuse(f"{OLD_LIBRARY} {tenant.isolation}: recreate the pod, so that it gets the agent's library")
            return
        try:
            self._share, slot = self.ledgers.join(tenant, self.who)
        except JoinError as error:
            self.refuse(str(error))
            return
        except OSError as error:
            logger.error("Could not make a ledger", extra={**self._log_fields(), "err": str(error)})  # noqa: TRY400
            self.refuse(f"the node's agent could not make a ledger: {error.strerror}")
            return
        self._reported_freed_bytes = self._share.freed_bytes
        self._send(
            wire.welcome(
                gpu_count=len(tenant.grants),
                slot=slot,
                isolation=tenant.isolation,
                percent=min((grant.limit_percent for grant in tenant.grants), default=0),
            ),
            [self._share.limits.descriptor, self._share.ledger.descriptor],
        )
        self.leases.join(self)
        self._log(
            logging.INFO,
            "Admitted a process",
            slot=slot,
            library=library_version,
            protocol=self.version,
            containers=list(tenant.containers),
            gpus={grant.uuid: grant.memory_bytes for grant in tenant.grants},
        )

    async def _lend(self, share: ShareLedger, refused: wire.Lease | None, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        if refused is not None and refused.gpu < len(share.tenant.grants) and self.ledgers.lend is not None:
            await self.ledgers.lend(share, refused.gpu, refused.number)
        self._send_reclaimed(share)

    def _send_reclaimed(self, share: ShareLedger) -> None:
        # Include bytes freed since this client's last answer: it may have read the ledger before that.
        freed = share.freed_bytes - self._reported_freed_bytes
        self._reported_freed_bytes += freed
        self.send(wire.reclaimed(freed))

    async def _measure(self, share: ShareLedger, asked: wire.Lease) -> None:
        unclaimed_bytes = None
        if asked.gpu < len(share.tenant.grants):
            unclaimed_bytes = await self.ledgers.measure(share, self.who, asked.gpu)
        self.send(wire.measured(asked, unclaimed_bytes))

    def _send(self, message: bytes, descriptors: list[int] | None = None) -> None:
        said = wire.with_version(message, self.version or contract.WIRE_OLDEST)
        try:
            socket.send_fds(self.connected, [said], descriptors or [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        # Close later: the caller may be in the middle of a GPU's scheduling.
        except (BrokenPipeError, ConnectionResetError):
            self._loop.call_soon(self.close)  # the process has just ended
        except OSError as error:
            self._loop.call_soon(self._end, f"it does not read its answers: {error.strerror}")

    def _end(self, why: str) -> None:
        if not self._open:
            return
        self._log(logging.WARNING, "Disconnected a process", err=why)
        self.close()

    def _log(self, level: int, message: str, **extra: object) -> None:
        """Log a line that a container can cause at any rate; excess lines are suppressed."""
        suppressed = self.limits.suppressed_lines(time.monotonic())
        if suppressed is not None:
            counted = {"left_out": suppressed} if suppressed else {}
            logger.log(level, message, extra={**self._log_fields(), **extra, **counted})

    def _log_fields(self) -> dict[str, object]:
        return {"pid": self.who.pid, "pod_uid": self.container.pod_uid, "container": self.container.container_id}
