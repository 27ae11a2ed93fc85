"""Messages of arbiter clients, over real sockets; the first byte of each message selects the client."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

from deviceplugin.arbiter import client_connection, share_ledgers, tenant
from deviceplugin.arbiter.scheduling import leases
from deviceplugin.host import kernel_process
from gpushare import contract

_LOOP = asyncio.new_event_loop()
_DIRECTORY = Path(tempfile.mkdtemp())
_HEADER = struct.Struct(contract.WIRE_HEADER)
_GPUS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{digit}" for digit in range(2))
_CLIENTS = 3
_LOOK_SECONDS = 5.0
_CLOSE = 0x80  # in the first byte: the client closes its connection
_ANSWERS = {
    contract.MESSAGE_WELCOME,
    contract.MESSAGE_REFUSED,
    contract.MESSAGE_OPEN,
    contract.MESSAGE_REVOKE,
    contract.MESSAGE_RECLAIMED,
    contract.MESSAGE_MEASURED,
}


class _Lookup:
    """A lookup in which every container except the last has half of the GPUs."""

    async def tenant(self, container: kernel_process.Container) -> tenant.Tenant:
        grants = tuple(tenant.Grant(uuid, 1 << 30, 50, 100) for uuid in _GPUS)
        return tenant.Tenant(container.pod_uid, "default", container.pod_uid, ("main",), 0, grants)


class _Failures(logging.Handler):
    """Collects what the arbiter logs as internal failures."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.getMessage()} {record.exc_info}")


_FAILURES = _Failures()
logging.getLogger("deviceplugin").addHandler(_FAILURES)
logging.getLogger("deviceplugin").setLevel(logging.ERROR)
logging.getLogger("deviceplugin").propagate = False


def run(data: bytes) -> None:
    failures: list[dict[str, Any]] = []
    _FAILURES.found.clear()
    _LOOP.set_exception_handler(lambda _, context: failures.append(context))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - this is what is counted, thousands of times a second
    _LOOP.run_until_complete(_story(_messages(data)))
    assert not failures, failures
    assert not _FAILURES.found, _FAILURES.found
    until = time.monotonic() + _LOOK_SECONDS
    while (left := len(os.listdir("/proc/self/fd")) - before) > 0 and time.monotonic() < until:  # noqa: PTH208
        time.sleep(0.001)  # a thread reads the mappings of a process
    assert left <= 0, f"{left} descriptors are left"


def _messages(data: bytes) -> list[tuple[int, bytes]]:
    """Split the input into messages as long as their headers say; without a valid header, the rest is one message."""
    messages: list[tuple[int, bytes]] = []
    while data and len(messages) < 64:
        who, data = data[0], data[1:]
        size = _HEADER.unpack_from(data)[3] if len(data) >= _HEADER.size else len(data)
        size = size if _HEADER.size <= size <= contract.WIRE_MAX else len(data)
        messages.append((who, data[:size]))
        data = data[size:]
    return messages


async def _story(messages: list[tuple[int, bytes]]) -> None:
    books = share_ledgers.ShareLedgers(_DIRECTORY)
    turns = leases.Leases(settling_ns=0)
    there: set[client_connection.ClientConnection] = set()
    ends = []
    for number in range(_CLIENTS):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        ends.append(theirs)
        _, start_ticks = kernel_process.with_start(os.getpid()) or (0, 0)
        who = kernel_process.KernelProcess(os.getpid(), start_ticks + number, os.pidfd_open(os.getpid()))
        there.add(
            client_connection.ClientConnection(
                ours,
                who=who,
                container=kernel_process.Container(f"pod-{number // 2}", f"{number:064}"),
                limits=client_connection.ConnectedContainer(),
                leases=turns,
                lookup=_Lookup(),
                ledgers=books,
                closed=there.discard,
                on_library_refused=lambda *_: None,
            )
        )
    try:
        for who_says, message in messages:
            await _say(ends[who_says % _CLIENTS], who_says, message)
    finally:
        turns.close()
        for connection in list(there):
            connection.close()
        await asyncio.sleep(0)
        books.close()
        for end in ends:
            end.close()
        for name in os.listdir(_DIRECTORY):  # noqa: PTH208 - as above
            os.unlink(_DIRECTORY / name)  # noqa: PTH108


async def _say(end: socket.socket, who: int, message: bytes) -> None:
    if end.fileno() < 0:
        return
    if who & _CLOSE:
        end.close()
    elif message:
        try:
            end.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            return
    for _ in range(4):  # it is read, handled, and may start a task
        await asyncio.sleep(0)
    while end.fileno() >= 0:
        try:
            data, descriptors, _, _ = socket.recv_fds(end, contract.WIRE_MAX + 1, 4)
        except OSError:
            return
        for descriptor in descriptors:
            os.close(descriptor)
        if not data:
            return
        magic, _, kind, size, _ = _HEADER.unpack_from(data)
        assert (magic, size) == (contract.WIRE_MAGIC, len(data))
        assert kind in _ANSWERS, kind
        assert (len(descriptors) == 2) == (kind == contract.MESSAGE_WELCOME)
