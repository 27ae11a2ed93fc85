"""The arbiter with libraries of other protocol versions: the negotiated version, and messages that are ignored."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from deviceplugin.host.kernel_process import Container
from gpushare import contract
from gpushare.allocation import Isolation, Labels
from tests.deviceplugin import waiting
from tests.deviceplugin.arbiter.test_hostility import connect, own_process
from tests.deviceplugin.arbiter_node import ArbiterNode
from tests.deviceplugin.named import uid

HEADER = struct.Struct(contract.WIRE_HEADER)
UNKNOWN = 99


def message(kind: int, version: int, body: bytes = b"", *, newest: int = 0) -> bytes:
    return HEADER.pack(contract.WIRE_MAGIC, version, kind, HEADER.size + len(body), newest) + body


async def heard(client: socket.socket) -> tuple[int, int, bytes]:
    """Return type, version and body of the next message; empty at the end of the connection."""
    async with asyncio.timeout(10):
        data = await asyncio.get_running_loop().sock_recv(client, contract.WIRE_MAX)
    if not data:
        return 0, 0, b""
    _, version, kind, size, _ = HEADER.unpack_from(data)
    assert size == len(data)
    return kind, version, data[HEADER.size :]


@contextlib.asynccontextmanager
async def greeted(node: ArbiterNode, oldest: int, newest: int) -> AsyncIterator[tuple[socket.socket, int]]:
    """Connect a library with this range. Return it, and the version of its welcome."""
    with contextlib.closing(await connect(node)) as client:
        client.send(message(contract.MESSAGE_HELLO, oldest, bytes(32), newest=newest))
        kind, version, _ = await heard(client)
        assert kind == contract.MESSAGE_WELCOME
        yield client, version


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch, node: ArbiterNode) -> None:
    node.add_pod("trainer")
    own_process(monkeypatch, node, "trainer")


RANGES = {"0.1.0": (1, 0, 1), "0.3.0": (1, 2, 2), "this release": (1, 3, 3), "a later one": (2, 9, 3)}


@pytest.mark.parametrize(("oldest", "newest", "agreed"), RANGES.values(), ids=RANGES.keys())
async def test_all_messages_have_the_negotiated_version(
    node: ArbiterNode, oldest: int, newest: int, agreed: int
) -> None:
    async with greeted(node, oldest, newest) as (client, version):
        assert version == agreed
        assert node.server.versions == {agreed: 1}
        client.send(message(contract.MESSAGE_RECLAIM, agreed))
        assert (await heard(client))[:2] == (contract.MESSAGE_RECLAIMED, agreed)
        client.send(message(contract.MESSAGE_WANT, agreed, struct.pack(contract.WIRE_LEASE, 0, 0, 0)))
        assert (await heard(client))[:2] == (contract.MESSAGE_OPEN, agreed)
    await waiting.until(lambda: node.server.versions == {})


async def test_message_types_of_newer_libraries_are_ignored(node: ArbiterNode) -> None:
    async with greeted(node, 1, 2) as (client, _):
        client.send(message(UNKNOWN, 2, bytes(100)))
        client.send(message(contract.MESSAGE_RECLAIM, 2, bytes(8)))
        assert (await heard(client))[0] == contract.MESSAGE_RECLAIMED, "the first was ignored, and the second read"


async def test_no_message_is_ignored_before_hello(node: ArbiterNode) -> None:
    with contextlib.closing(await connect(node)) as client:
        client.send(message(UNKNOWN, 2))
        assert await heard(client) == (0, 0, b"")


@pytest.mark.parametrize("version", [0, 1, 3, 65535])
async def test_a_changed_version_is_refused_in_the_negotiated_one(node: ArbiterNode, version: int) -> None:
    async with greeted(node, 1, 2) as (client, _):
        client.send(message(contract.MESSAGE_RECLAIM, version))
        kind, spoken, body = await heard(client)
        assert (kind, spoken) == (contract.MESSAGE_REFUSED, 2)
        assert body.split(b"\0")[0].decode() == (
            f"the library sent a message in version {version}, after version 2 was agreed on"
        )
        assert await heard(client) == (0, 0, b"")


async def test_a_too_new_library_is_refused_in_a_version_that_it_understands(node: ArbiterNode) -> None:
    with contextlib.closing(await connect(node)) as client:
        client.send(message(contract.MESSAGE_HELLO, 7, bytes(32), newest=9))
        kind, version, body = await heard(client)
        assert (kind, version) == (contract.MESSAGE_REFUSED, 7)
        assert b"versions 7 to 9 of the protocol and this node's agent versions 1 to 3" in body


async def test_the_agent_gets_the_same_reason_as_the_refused_library(node: ArbiterNode) -> None:
    refusals: list[tuple[Container, str]] = []
    node.server.on_library_refused = lambda *what: refusals.append(what)
    async with greeted(node, 1, 2) as (client, _):
        client.send(message(contract.MESSAGE_RECLAIM, 9))  # no release of ours sends this
        assert (await heard(client))[0] == contract.MESSAGE_REFUSED
    assert refusals == []
    with contextlib.closing(await connect(node)) as client:
        client.send(message(contract.MESSAGE_HELLO, 7, bytes(32), newest=9))
        _, _, body = await heard(client)
    ((container, sentence),) = refusals
    assert container.pod_uid == uid("trainer")
    assert sentence == body.split(b"\0")[0].decode()
    assert sentence.endswith("recreate the pod, so that it gets the agent's library")


@pytest.mark.parametrize("isolation", [Isolation.MPS, Isolation.NONE])
async def test_only_libraries_that_know_isolations_get_another_share_than_the_arbiters(
    node: ArbiterNode, isolation: Isolation
) -> None:
    entry = node.allocations[0]
    node.allocations[0] = dataclasses.replace(entry, labels=Labels(isolation=isolation))
    with contextlib.closing(await connect(node)) as client:
        client.send(message(contract.MESSAGE_HELLO, 1, bytes(32), newest=2))
        kind, _, body = await heard(client)
        assert kind == contract.MESSAGE_REFUSED
        assert f"too old for a share with the isolation {isolation}".encode() in body
    with contextlib.closing(await connect(node)) as client:
        client.send(message(contract.MESSAGE_HELLO, 1, bytes(32), newest=3))
        kind, version, body = await heard(client)
        assert (kind, version) == (contract.MESSAGE_WELCOME, 3)
        number, percent, pipe = struct.unpack_from(
            contract.WIRE_ISOLATION, body, struct.calcsize(contract.WIRE_WELCOME)
        )
        wanted = {
            Isolation.MPS: (contract.ISOLATION_MPS, 100, contract.CONTAINER_MPS_PIPE),
            Isolation.NONE: (contract.ISOLATION_NONE, 0, ""),
        }
        assert (number, percent, pipe.rstrip(b"\0").decode()) == wanted[isolation]
        # Its gate opens at once, and no other share closes it.
        client.send(message(contract.MESSAGE_WANT, 3, struct.pack(contract.WIRE_LEASE, 0, 0, 0)))
        kind, _, body = await heard(client)
        assert (kind, struct.unpack(contract.WIRE_LEASE, body)[:2]) == (contract.MESSAGE_OPEN, (0, 0))
    assert list(node.server.leases.usage()) == []
