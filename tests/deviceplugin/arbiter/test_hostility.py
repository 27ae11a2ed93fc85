"""Malicious, slow or too many clients harm no others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import socket
import statistics
import struct
import time
from pathlib import Path

import pytest

from deviceplugin.arbiter import client_connection, socket_server
from deviceplugin.arbiter.tenant import Grant, Tenant
from deviceplugin.host.kernel_process import Container
from gpushare import contract
from tests.deviceplugin import arbiter_node, named, waiting
from tests.deviceplugin.arbiter.lease_clients import Client
from tests.deviceplugin.arbiter_node import ArbiterNode

pytestmark = pytest.mark.slow


def header(
    kind: int, *, size: int | None = None, magic: int = contract.WIRE_MAGIC, version: int = contract.WIRE_VERSION
) -> bytes:
    length = struct.calcsize(contract.WIRE_HEADER)
    return struct.pack(contract.WIRE_HEADER, magic, version, kind, length if size is None else size, 0)


HELLO = header(contract.MESSAGE_HELLO, size=48) + bytes(32)
RECLAIM = header(contract.MESSAGE_RECLAIM)


def own_process(monkeypatch: pytest.MonkeyPatch, node: ArbiterNode, pod: str) -> None:
    """Count the test's own process as one of this pod's, so that it can open many connections."""
    known = node.identify

    def identify(pid: int) -> object:
        if pid != os.getpid():
            return known(pid)
        return Container(named.uid(pod), named.container_id(pod, "main"))

    monkeypatch.setattr(node, "identify", identify)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def _send_for_ever(to: socket.socket) -> None:
    async with asyncio.timeout(20):
        while True:
            await asyncio.get_running_loop().sock_sendall(to, RECLAIM)


async def connect(node: ArbiterNode) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    try:
        while True:
            with contextlib.suppress(
                BlockingIOError
            ):  # the backlog is full: a client that retries, as the library does, gets in
                made.connect(str(node.socket))
                await asyncio.sleep(0)
                return made
            await asyncio.sleep(0.001)
    except BaseException:
        made.close()
        raise


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(48),
        random.Random(7).randbytes(512),
        HELLO[:-1],
        HELLO + b"x",
        HELLO + bytes(4096),
        header(contract.MESSAGE_HELLO),
        header(contract.MESSAGE_HELLO, size=2**32 - 1) + bytes(32),
        header(contract.MESSAGE_WELCOME, size=24) + bytes(8),
        header(99),
        RECLAIM,  # before HELLO
        header(contract.MESSAGE_WANT, size=32) + bytes(16),  # before HELLO too
        header(contract.MESSAGE_OPEN, size=32) + bytes(16),  # only the arbiter sends this
        header(contract.MESSAGE_HELLO, magic=1),
    ],
    ids=lambda data: data[:24].hex(),
)
async def test_a_malformed_message_ends_only_its_connection(node: ArbiterNode, data: bytes) -> None:
    node.add_pod("trainer")
    other, bad = await node.share(), await node.share()
    await other("hello")
    assert await bad("raw", data.hex()) == "closed"
    assert await other("reclaim") == 0


async def test_a_second_hello_ends_the_connection_and_keeps_the_charge(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    await process("charge", 0, 100)
    assert await process("raw", HELLO.hex()) == "closed"
    assert node.used() == (100,)


async def test_another_protocol_version_is_refused_with_a_remedy(node: ArbiterNode) -> None:
    node.add_pod("trainer")
    process = await node.share()
    data = header(contract.MESSAGE_HELLO, version=4, size=48) + bytes(32)
    assert await process("raw", data.hex()) == (
        "the library speaks version 4 of the protocol and this node's agent versions 1 to 3: "
        "recreate the pod, so that it gets the agent's library"
    )


async def test_a_silent_client_is_disconnected(node: ArbiterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "HELLO_SECONDS", 0.05)
    node.add_pod("trainer")
    own_process(monkeypatch, node, "trainer")
    with await connect(node) as silent:
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
    assert node.server.connections == 0


async def test_five_hundred_connections_of_one_container_leave_room_for_others(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("hog")
    node.add_pod("trainer")
    own_process(monkeypatch, node, "hog")
    monkeypatch.setattr(client_connection, "HELLO_SECONDS", 600.0)  # these clients are silent for long
    held = [await connect(node) for _ in range(500)]
    try:
        await waiting.until(lambda: node.server.connections == 500)
        process = await node.share()
        assert (await process("hello"))["slot"] == 0
        more = [await connect(node) for _ in range(50)]
        await waiting.until(lambda: node.server.turned_away == 38)
        assert node.server.connections == contract.LEDGER_SLOTS + 1
        async with asyncio.timeout(10):
            answer = await asyncio.get_running_loop().sock_recv(more[-1], contract.WIRE_MAX)
        assert b"this container already has 512 connections" in answer
        assert await process("reclaim") == 0
        for item in more:
            item.close()
    finally:
        for item in held:
            item.close()
    await waiting.until(lambda: node.server.connections == 1)


async def test_containers_that_take_all_connections_cannot_keep_another_out(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "MAX_CONNECTIONS", 256)
    monkeypatch.setattr(socket_server, "CONTAINERS", 32)
    monkeypatch.setattr(client_connection, "HELLO_SECONDS", 600.0)
    await node.stop()
    await node.start()
    hogs = [f"hog{number}" for number in range(30)]
    for name in (*hogs, "trainer", "newcomer"):
        node.add_pod(name)
    own_process(monkeypatch, node, hogs[0])
    process = await node.share()
    await process("hello")
    held = list[socket.socket]()
    try:
        for name in hogs:
            own_process(monkeypatch, node, name)
            before = node.server.connections
            held += [await connect(node) for _ in range(16 if held else 256)]
            asked = len(held) + 1
            await waiting.until(lambda asked=asked: node.server.connections + node.server.turned_away == asked)
            assert node.server.connections >= before + 4, f"{name} got none"
        more = await connect(node)
        held.append(more)
        async with asyncio.timeout(10):
            answer = await asyncio.get_running_loop().sock_recv(more, contract.WIRE_MAX)
        assert b"for containers with fewer than the 4 of this one" in answer
        newcomer = await node.share("newcomer")
        assert (await newcomer("hello"))["slot"] == 0
        assert await process("reclaim") == 0
        assert node.server.connections < 256
    finally:
        for item in held:
            item.close()
    await waiting.until(lambda: node.server.connections == 2)


async def test_a_flood_of_messages_delays_only_its_sender(node: ArbiterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "MESSAGE_BURST", 16)
    node.add_pod("hog")
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    own_process(monkeypatch, node, "hog")
    loop = asyncio.get_running_loop()
    with await connect(node) as flood:
        await loop.sock_sendall(flood, HELLO)
        await loop.sock_recv(flood, contract.WIRE_MAX)
        answered = 0
        began = time.monotonic()
        sent = 0
        took = []
        while time.monotonic() - began < 1.0 or len(took) < 10:
            for _ in range(64):
                try:
                    flood.send(RECLAIM)
                    sent += 1
                except BlockingIOError:
                    break
            try:
                while flood.recv(contract.WIRE_MAX):
                    answered += 1
            except BlockingIOError:
                pass
            asked = time.monotonic()
            assert await process("reclaim") == 0
            took.append(time.monotonic() - asked)
        assert statistics.median(took) < 0.5
        assert sent > answered
        assert answered <= 16 + client_connection.MESSAGES_PER_SECOND * (time.monotonic() - began) + 1


async def test_a_client_that_reads_no_answers_is_disconnected_and_blocks_no_other(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_connection, "MESSAGES_PER_SECOND", 1e6)
    monkeypatch.setattr(client_connection, "MESSAGE_BURST", 10**6)
    node.add_pod("hog")
    node.add_pod("trainer")
    process = await node.share()
    await process("hello")
    own_process(monkeypatch, node, "hog")
    loop = asyncio.get_running_loop()
    with await connect(node) as deaf:
        await loop.sock_sendall(deaf, HELLO)
        with pytest.raises(ConnectionError):
            await _send_for_ever(deaf)
    assert await process("reclaim") == 0
    assert "Disconnected" in caplog.text


async def test_a_process_that_has_just_ended_is_not_logged(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.add_pod("hasty")
    own_process(monkeypatch, node, "hasty")
    loop = asyncio.get_running_loop()
    with await connect(node) as hasty:
        for asked in (HELLO, header(contract.MESSAGE_WANT, size=32) + bytes(16)):
            await loop.sock_sendall(hasty, asked)
            await loop.sock_recv(hasty, contract.WIRE_MAX)
        hasty.close()
        other = Grant(arbiter_node.GPUS[0], arbiter_node.GIB, 50, 100)
        # It gets a message that it is not alone, before its end is noticed.
        node.server.leases.join(Client(Tenant("b", "default", "b", ("main",), 0, (other,))))
    await waiting.until(lambda: node.server.connections == 0)
    assert "Disconnected" not in caplog.text


async def test_connections_that_come_and_go_do_not_keep_others_out(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("hog")
    node.add_pod("trainer")
    own_process(monkeypatch, node, "hog")

    async def storm() -> None:
        while True:
            (await connect(node)).close()

    storming = asyncio.create_task(storm())
    try:
        for slot in range(3):
            async with asyncio.timeout(60):
                assert (await (await node.share())("hello"))["slot"] == slot
    finally:
        storming.cancel()
    await waiting.until(lambda: node.server.connections == 3)


async def test_clients_that_connect_and_leave_take_few_places_before_a_new_one(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_pod("hog")
    own_process(monkeypatch, node, "hog")
    taken = 0
    while taken < 2000:  # the arbiter does not run meanwhile
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
            made.setblocking(False)
            try:
                made.connect(str(node.socket))
            except BlockingIOError:
                break
            taken += 1
    assert taken <= socket_server.ACCEPTS_A_TURN * 4, "at a thousand a second each of them is a millisecond"


async def test_descriptors_sent_by_a_client_are_closed(node: ArbiterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add_pod("trainer")
    own_process(monkeypatch, node, "trainer")
    gc.collect()
    gc.disable()  # or files of earlier tests would be closed meanwhile
    try:
        with await connect(node) as generous:
            before = _descriptors()
            socket.send_fds(generous, [HELLO], [generous.fileno()] * 50)
            async with asyncio.timeout(10):
                await asyncio.get_running_loop().sock_recv(generous, contract.WIRE_MAX)
            # The arbiter's own: the connection, two pidfds, and limits and ledger, each twice because of the mapping.
            assert _descriptors() - before == 7
    finally:
        gc.enable()


async def test_reconnecting_does_not_raise_the_rate_limit(node: ArbiterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "MESSAGE_BURST", 16)
    node.add_pod("hog")
    own_process(monkeypatch, node, "hog")
    loop = asyncio.get_running_loop()
    answered = 0
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        with await connect(node) as hasty:
            async with asyncio.timeout(10):
                for sent in (HELLO, *[RECLAIM] * 16):
                    await loop.sock_sendall(hasty, sent)
                    answered += bool(await loop.sock_recv(hasty, contract.WIRE_MAX))
        await waiting.until(lambda: node.server.connections == 0)
    assert answered <= 16 + client_connection.MESSAGES_PER_SECOND * (time.monotonic() - began) + 17


async def test_a_process_that_dies_before_it_is_identified_gets_no_container(
    node: ArbiterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid may belong to a process of another container before its cgroup is read."""
    node.add_pod("victim")
    process = await node.share("hostile")

    def identify(pid: int) -> object:
        os.kill(pid, signal.SIGKILL)
        # The process is dead once its parent can wait for it, and all pidfds show it. The event loop's own thread may
        # have waited for it already.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return Container(named.uid("victim"), named.container_id("victim", "main"))

    monkeypatch.setattr(node, "identify", identify)
    with pytest.raises(AssertionError, match="the process ended"):
        await process("hello")
    await waiting.until(lambda: node.server.turned_away == 1)
    assert node.server.connections == 0
    assert node.used("victim") is None
