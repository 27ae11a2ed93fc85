"""A replica that shuts down answers every client that still talks to it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpushare import contract
from gpushare.daemon import lifecycle
from webhook import cluster_process, connections, review, server
from webhook.certificates import rotation
from webhook.certificates.rotation import RotationStep
from webhook.certificates.tls import Tls

pytestmark = pytest.mark.slow

REVIEW = {
    "apiVersion": review.API_VERSION,
    "kind": "AdmissionReview",
    "request": {"uid": "u-1", "operation": "CREATE", "object": {}},
}


class Connection:
    """A pooled connection of the API server, which stays open between reviews."""

    _BODY = json.dumps(REVIEW)
    REQUEST = (
        f"POST {contract.WEBHOOK_PATH} HTTP/1.1\r\nHost: webhook\r\nContent-Length: {len(_BODY)}\r\n\r\n{_BODY}"
    ).encode()

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def review(self) -> str:
        """Send a review; return the head of the answer in lower case."""
        self.send(self.REQUEST)
        return await self.answer()

    def send(self, part: bytes) -> None:
        self._writer.write(part)

    async def send_all(self, part: bytes) -> None:
        """Send until the server has read nearly all of it."""
        self._writer.write(part)
        await asyncio.wait_for(self._writer.drain(), 10)

    async def answer(self) -> str:
        """Return the head of the answer in lower case."""
        answered = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(line.split()[1] for line in answered.splitlines() if line.startswith("content-length"))
        await self._reader.readexactly(int(length))
        return answered

    async def ended(self) -> bool:
        """Whether the server has closed the connection without sending more."""
        return await self._reader.read() == b""

    @staticmethod
    def tls() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def close(self) -> None:
        self._writer.close()


class Replica:
    def __init__(self, directory: Path) -> None:
        tls = Tls(directory)
        tls.load(rotation.apply_step(RotationStep.START, None, ("127.0.0.1",), now=datetime.datetime.now(datetime.UTC)))
        self._tls = tls.context
        self.stop, self.slow = asyncio.Event(), asyncio.Event()
        self.slow.set()
        self.port = self.judged = 0
        self.connections: list[Connection] = []

    async def _admit(self, _: review.AdmissionRequest) -> review.ReviewResponse:
        self.judged += 1
        await self.slow.wait()
        return review.allow("ignored")

    async def run(self, serving: asyncio.Event) -> None:
        async with server.serve(self._admit, self._tls, host="127.0.0.1", port=0) as self.port:
            serving.set()
            await self.stop.wait()

    async def connect(self) -> Connection:
        self.connections.append(
            Connection(*await asyncio.open_connection("127.0.0.1", self.port, ssl=Connection.tls()))
        )
        return self.connections[-1]


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[Replica, asyncio.Task[None]]]:
    replica, serving = Replica(directory), asyncio.Event()
    task = asyncio.create_task(replica.run(serving))
    await asyncio.wait_for(serving.wait(), 10)
    try:
        yield replica, task
    finally:
        replica.stop.set()
        await asyncio.wait_for(task, 30)
        for connection in replica.connections:
            connection.close()


async def until_listening_ends(port: int) -> None:
    """Wait until connections are refused."""
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                return
            writer.close()
            await asyncio.sleep(0.05)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prolong the timeouts for tests that are not about time, because the machine may be busy."""
    monkeypatch.setattr(server, "QUIET_SECONDS", 30.0)
    monkeypatch.setattr(server, "MAX_DRAIN_SECONDS", 60.0)


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave time for events after the last connection was accepted."""
    monkeypatch.setattr(connections, "DISMISS_SECONDS", 10.0)


@pytest.mark.usefixtures("patient")
async def test_pooled_connection_gets_a_last_answer_that_closes_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (replica, task):
        pooled = [await replica.connect() for _ in range(2)]
        for connection in pooled:
            assert "connection: close" not in await connection.review()
        replica.stop.set()
        await asyncio.sleep(2 * server.POLL_SECONDS)
        for connection in pooled:
            assert "connection: close" in await connection.review()
            assert await connection.ended()
        await asyncio.wait_for(task, server.QUIET_SECONDS / 2)  # no connection is left to wait for


@pytest.mark.usefixtures("patient")
async def test_new_connections_are_accepted_while_draining(tmp_path: Path) -> None:
    async with running(tmp_path) as (replica, _):
        pooled = await replica.connect()
        replica.stop.set()
        await asyncio.sleep(2 * server.POLL_SECONDS)
        late = await replica.connect()
        assert "connection: close" in await late.review()
        pooled.close()


@pytest.mark.usefixtures("patient")
async def test_in_flight_reviews_are_answered_at_shutdown(tmp_path: Path) -> None:
    async with running(tmp_path) as (replica, _):
        connection = await replica.connect()
        replica.slow.clear()
        asked = asyncio.create_task(connection.review())
        await asyncio.sleep(0.1)
        replica.stop.set()
        await asyncio.sleep(2 * server.POLL_SECONDS)
        replica.slow.set()
        assert "200 ok" in await asked


async def test_review_on_a_closing_connection_is_retried(tmp_path: Path) -> None:
    async with running(tmp_path) as (replica, task):
        used, unused = [await replica.connect() for _ in range(2)]
        assert "200 ok" in await used.review()
        replica.stop.set()
        await asyncio.wait_for(
            task, server.QUIET_SECONDS + connections.DISMISS_SECONDS + 5
        )  # a silent client does not delay the shutdown for long
        for connection in (used, unused):
            assert connections.SEND_AGAIN.decode().lower() == await connection.review()
            assert await connection.ended()
        assert replica.judged == 1


@pytest.mark.usefixtures("lenient")
async def test_connection_just_before_the_end_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (replica, task):
        reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)  # the handshake is to come
        other = await replica.connect()
        await other.review()  # so it was accepted
        other.close()
        replica.stop.set()
        await until_listening_ends(replica.port)
        await writer.start_tls(Connection.tls())
        replica.connections.append(late := Connection(reader, writer))
        answered = await late.review()
        assert "200 ok" in answered
        assert "connection: close" in answered
        await asyncio.wait_for(task, 20)


@pytest.mark.usefixtures("lenient")
async def test_half_sent_review_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (replica, task):
        in_body, in_head = [await replica.connect() for _ in range(2)]
        in_body.send(Connection.REQUEST[:-5])
        in_head.send(Connection.REQUEST[:20])
        await asyncio.sleep(0.2)
        replica.stop.set()
        await until_listening_ends(replica.port)
        in_body.send(Connection.REQUEST[-5:])
        in_head.send(Connection.REQUEST[20:])
        assert "200 ok" in await in_body.answer()
        assert "200 ok" in await in_head.answer()
        await asyncio.wait_for(task, 20)


async def test_review_in_flight_is_not_answered_by_a_reset(tmp_path: Path) -> None:
    async with running(tmp_path) as (replica, _):
        crossing = await replica.connect()
        await crossing.review()
        replica.stop.set()
        assert connections.SEND_AGAIN.decode().lower() == await crossing.answer()
        await crossing.send_all(bytes(8 << 20))  # more than fits between the two
        crossing.close()  # as a client does that was answered


@pytest.mark.usefixtures("lenient")
async def test_failed_handshake_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    async with running(tmp_path) as (replica, task):
        writers = [(await asyncio.open_connection("127.0.0.1", replica.port))[1] for _ in range(5)]
        (await replica.connect()).close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.2)
        replica.stop.set()
        await asyncio.wait_for(task, connections.DISMISS_SECONDS / 2)


async def test_endless_sender_delays_the_shutdown_for_a_bounded_time() -> None:
    now = 0.0
    leaving = server.GracefulShutdown(clock=lambda: now)

    async def answer(_: Any) -> web.StreamResponse:
        return web.Response()

    going = asyncio.create_task(leaving.drain({1}))
    await asyncio.sleep(0)  # it begins, at 0
    while now <= server.MAX_DRAIN_SECONDS:
        assert not going.done()
        now += 1
        await leaving.middleware(None, answer)  # type: ignore[arg-type]
        await asyncio.sleep(1.5 * server.POLL_SECONDS)
    await asyncio.wait_for(going, 1)


def test_the_api_server_ends_idle_connections_not_we() -> None:
    assert server.IDLE_SECONDS > 90  # of Go's http.Transport, as the API server sets it
    # SIGTERM comes when the pause of preStop is over; then all waits have to fit into the daemon's time.
    waits = (
        server.MAX_DRAIN_SECONDS,
        connections.DISMISS_SECONDS,
        server.SHUTDOWN_SECONDS,
        cluster_process.FLUSH_SECONDS,
    )
    assert sum(waits) < lifecycle.GRACE_SECONDS
