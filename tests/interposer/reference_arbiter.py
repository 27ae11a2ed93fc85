"""An arbiter for tests of the library, which implements only the contract's protocol.

Every process that connects gets a slot in one container's pages. Unlike the product's arbiter, it can misbehave.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import dataclasses
import fcntl
import mmap
import os
import queue
import selectors
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gpushare import contract

F_ADD_SEALS = 1033
F_SEAL_SHRINK_GROW_FUTURE_WRITE = 0x2 | 0x4 | 0x10
UNKNOWN = 77  # an unassigned message type
HEADER_SIZE = struct.calcsize(contract.WIRE_HEADER)


@dataclass(frozen=True, slots=True)
class Share:
    """The container's limits on one GPU."""

    uuid: str
    memory_bytes: int
    request_percent: int = 50
    limit_percent: int = 100
    overhead_bytes: int = 0
    context_bytes: int = 0
    turn_permille: tuple[int, int] = (0, 0)  # begin and length of its turn while there is no arbiter
    burst_bytes: int = 0  # the limit up to which memory is lent


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """The differences from a correct arbiter."""

    refusal: str | None = None
    version: int = contract.WIRE_VERSION  # the protocol version in WELCOME
    layout: int = contract.PAGES_LAYOUT
    more: bytes = b""  # appended to each message
    unknown: bool = False  # send a message of an unknown type before each message
    silent: bool = False
    descriptors: int = 2
    grants: bool = True  # grant a lease to every process that wants one
    flags: int = 0  # flags of granted leases
    reclaim_seconds: float = 0.0  # duration of a search for dead processes' bytes


GOOD = Misbehaviour()


class ReferenceArbiter:
    """Serves one container on `directory/arbiter.sock` in a thread, inside `with`.

    after: an earlier arbiter, which must still exist; its ledger is reused.
    """

    def __init__(
        self,
        directory: Path,
        shares: list[Share],
        behaviour: Misbehaviour = GOOD,
        *,
        after: ReferenceArbiter | None = None,
    ) -> None:
        self._path = directory / contract.ARBITER_SOCKET_NAME
        self._shares = shares
        self._behaviour = behaviour
        self._connections: set[socket.socket] = set()
        self._slots: dict[socket.socket, int] = {}
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._stopped = False
        self.hellos = 0
        self.reclaims = 0
        # called in its thread before it searches for dead processes' bytes
        self.before_a_look: Callable[[], object] = lambda: None
        # messages about leases: type, GPU, flags, number
        self.heard: queue.Queue[tuple[int, int, int, int]] = queue.Queue()
        self._leases = 0  # number of leases granted so far
        self._unheard: list[tuple[int, int, int, int]] = []
        self._limits_descriptor, self._limits = _page("limits", 1)
        known: int | None = None if after is None else after.ledger_descriptor
        self.ledger_descriptor: int
        self.ledger_descriptor, self._ledger = _page("ledger", max(1, len(shares)), known)
        for index, share in enumerate(shares):
            self._write_share(index, share)
        self._write_header(0)
        fcntl.fcntl(self._limits_descriptor, F_ADD_SEALS, F_SEAL_SHRINK_GROW_FUTURE_WRITE)

    def __enter__(self) -> Self:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self._path))
        self._path.chmod(0o666)
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, as an agent that is being replaced does; no-op if stopped."""
        if self._stopped:
            return
        self._stopped = True
        self._stop_writer.send(b"x")
        self._thread.join(10)
        for connection in [*self._connections, self._listener, self._stop_reader, self._stop_writer]:
            connection.close()
        self._path.unlink()
        self._limits.close()
        self._ledger.close()
        os.close(self._limits_descriptor)
        os.close(self.ledger_descriptor)

    def set_limit(self, gpu: int, memory_bytes: int) -> None:
        """Change a limit while processes run."""
        self.set(gpu, memory_bytes=memory_bytes)

    def set(self, gpu: int, **amounts: Any) -> None:
        """Change fields of a share by name while processes run."""
        self._shares[gpu] = dataclasses.replace(self._shares[gpu], **amounts)
        self._write_share(gpu, self._shares[gpu])

    @property
    def ledger_path(self) -> str:
        """The path of the ledger, for other processes to map."""
        return f"/proc/{os.getpid()}/fd/{self.ledger_descriptor}"

    def charged(self, gpu: int = 0) -> list[int]:
        """Return the bytes of each slot that has some."""
        page = self._ledger[gpu * contract.PAGE_SIZE : (gpu + 1) * contract.PAGE_SIZE]
        return [held for (held,) in struct.iter_unpack(contract.LEDGER_SLOT, page) if held]

    def _write_share(self, index: int, share: Share) -> None:
        struct.pack_into(
            contract.LIMITS_RECORD,
            self._limits,
            struct.calcsize(contract.LIMITS_HEADER) + index * contract.LIMITS_RECORD_SIZE,
            uuid.UUID(share.uuid.removeprefix("GPU-")).bytes,
            share.memory_bytes,
            share.request_percent,
            share.limit_percent,
            share.overhead_bytes,
            share.context_bytes,
            *share.turn_permille,
            share.burst_bytes,
        )

    def _write_header(self, slot_count: int) -> None:
        # Writes whole words: pack_into would clear the bytes first, and a process that reads in between would count no
        # slot.
        for at, value in ((0, len(self._shares)), (4, slot_count), (8, self._behaviour.layout)):
            word = ctypes.c_uint32.from_buffer(self._limits, at)
            word.value = value
            del word
        self._slot_count = slot_count

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stop_reader, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._stop_reader in ready:
                    return
                # Dead processes first, so that a RECLAIM from the same moment gets their bytes.
                for connection in sorted(ready, key=lambda endpoint: endpoint is self._listener):
                    assert isinstance(connection, socket.socket)
                    if connection is self._listener:
                        accepted, _ = self._listener.accept()
                        selector.register(accepted, selectors.EVENT_READ)
                        self._connections.add(accepted)
                    elif not self._answer(connection):
                        selector.unregister(connection)
                        self._connections.remove(connection)
                        connection.close()

    def _answer(self, connection: socket.socket) -> bool:
        try:
            message = connection.recv(contract.WIRE_MAX)
        except ConnectionResetError:
            message = b""
        if not message:
            self._forget(connection)
            return False
        magic, version, kind, size, newest = struct.unpack_from(contract.WIRE_HEADER, message)
        asked = kind == contract.MESSAGE_HELLO
        assert (magic, size) == (contract.WIRE_MAGIC, len(message))
        assert version == (contract.WIRE_OLDEST if asked else self._behaviour.version)
        assert newest == (contract.WIRE_VERSION if asked else 0)
        if kind == contract.MESSAGE_HELLO:
            self.hellos += 1
            self._welcome(connection)
        elif kind == contract.MESSAGE_RECLAIM:
            self.reclaims += 1
            time.sleep(self._behaviour.reclaim_seconds)
            self.before_a_look()
            freed = sum(self._forget(slot) for slot in list(self._slots) if _hung_up(slot))
            self._send(connection, contract.MESSAGE_RECLAIMED, struct.pack(contract.WIRE_RECLAIMED, freed))
        else:
            said = struct.unpack_from(contract.WIRE_LEASE, message, HEADER_SIZE)
            self.heard.put((kind, *said))
            if kind == contract.MESSAGE_WANT and self._behaviour.grants:
                self._leases += 1
                opened = struct.pack(contract.WIRE_LEASE, said[0], self._behaviour.flags, self._leases)
                self._send(connection, contract.MESSAGE_OPEN, opened)
        return True

    def say(self, kind: int, gpu: int, flags: int, number: int) -> None:
        """Send a message about a lease to every process."""
        for connection in list(self._slots):
            self._send(connection, kind, struct.pack(contract.WIRE_LEASE, gpu, flags, number))

    def hears(self, kind: int, *, seconds: float = 60.0) -> tuple[int, int, int]:
        """Return GPU, flags and number of the next message of a type. Messages of other types remain queued."""
        until = time.monotonic() + seconds
        while True:
            for position, (heard, *said) in enumerate(self._unheard):
                if heard == kind:
                    del self._unheard[position]
                    return said[0], said[1], said[2]
            self._unheard.append(self.heard.get(timeout=max(0.0, until - time.monotonic())))

    def _welcome(self, connection: socket.socket) -> None:
        if self._behaviour.silent:
            return
        if self._behaviour.refusal is not None:
            self._send(
                connection,
                contract.MESSAGE_REFUSED,
                struct.pack(contract.WIRE_REFUSED, self._behaviour.refusal.encode()),
            )
            return
        slot = min(set(range(contract.LEDGER_SLOTS)) - set(self._slots.values()))
        self._slots[connection] = slot
        self._write_header(max(self._slot_count, slot + 1))
        descriptors = [self._limits_descriptor, self.ledger_descriptor][: self._behaviour.descriptors]
        self._send(
            connection,
            contract.MESSAGE_WELCOME,
            struct.pack(contract.WIRE_WELCOME, len(self._shares), slot),
            descriptors,
        )

    def _forget(self, connection: socket.socket) -> int:
        slot = self._slots.pop(connection, None)
        if slot is None:
            return 0
        freed = 0
        for gpu in range(len(self._shares)):
            at = gpu * contract.PAGE_SIZE + slot * struct.calcsize(contract.LEDGER_SLOT)
            freed += struct.unpack_from(contract.LEDGER_SLOT, self._ledger, at)[0]
            struct.pack_into(contract.LEDGER_SLOT, self._ledger, at, 0)
        return freed

    def _send(self, connection: socket.socket, kind: int, body: bytes, descriptors: list[int] | None = None) -> None:
        if self._behaviour.unknown and kind not in (contract.MESSAGE_WELCOME, UNKNOWN):
            self._send(connection, UNKNOWN, body)
        body += self._behaviour.more
        header = struct.pack(
            contract.WIRE_HEADER,
            contract.WIRE_MAGIC,
            self._behaviour.version,
            kind,
            HEADER_SIZE + len(body),
            0,
        )
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the process may be dead
            connection.sendmsg([header + body], rights)


def _page(name: str, pages: int, known: int | None = None) -> tuple[int, mmap.mmap]:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if known is None else os.dup(known)
    os.ftruncate(descriptor, pages * contract.PAGE_SIZE)
    return descriptor, mmap.mmap(descriptor, pages * contract.PAGE_SIZE)


def _hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
