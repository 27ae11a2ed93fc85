"""Limits for clients that reach the port: how long and how much they may send, and which others are answered
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import resource
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpushare import codec, contract
from tests import builders
from webhook import bounds, connections, review, server, webhook_settings
from webhook.certificates import rotation
from webhook.certificates.rotation import RotationStep
from webhook.certificates.tls import Tls

REVIEW = json.dumps(
    {
        "apiVersion": review.API_VERSION,
        "kind": "AdmissionReview",
        "request": {"uid": "u-1", "operation": "CREATE", "object": {}},
    }
).encode()

MAX_OF_A_BODY = b" " * (bounds.LARGEST_BYTES - 1000)


async def admit(_: review.AdmissionRequest) -> review.ReviewResponse:
    return review.allow("ignored")


@contextlib.asynccontextmanager
async def other_process(directory: Path) -> AsyncIterator[tuple[int, Callable[[], int]]]:
    """Run a webhook in memory in another process; yield its port, and a function for its memory in bytes."""
    port_file, nodes = directory / "port", directory / "nodes.json"
    nodes.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [codec.to_document(builders.node())]}))
    arguments = [f"--from={nodes}", "--host=127.0.0.1", "--probe-host=127.0.0.1", "--port=0", "--probe-port=0"]
    arguments += [f"--port-file={port_file}", f"--certificate-directory={directory / 'tls'}", "--log-level=error"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "webhook", *arguments)

    def resident_bytes() -> int:
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    try:
        async with asyncio.timeout(30):
            while not (port_file.exists() and port_file.read_text()):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        yield int(port_file.read_text()), resident_bytes
    finally:
        process.terminate()
        await process.wait()


async def begins(port: int) -> asyncio.StreamWriter:
    """Send most of a body and stop."""
    client = await asyncio.wait_for(Client.connect(port), 60)
    client.writer.write(f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: {bounds.LARGEST_BYTES}\r\n\r\n".encode())
    client.writer.write(MAX_OF_A_BODY)
    return client.writer


@contextlib.asynccontextmanager
async def serving(directory: Path, client_ca_file: Path | None = None) -> AsyncIterator[int]:
    tls = Tls(directory, client_ca_file)
    tls.load(rotation.apply_step(RotationStep.START, None, ("127.0.0.1",), now=datetime.datetime.now(datetime.UTC)))
    async with server.serve(admit, tls.context, host="127.0.0.1", port=0) as port:
        yield port


def unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None = None, *, source: str = "127.0.0.1") -> Client:
        if context is None:
            context = unchecked()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=(source, 0)))

    async def send(self, body: bytes, *, length: int | None = None) -> None:
        head = f"POST {contract.WEBHOOK_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def status(self) -> int:
        line = await asyncio.wait_for(self.reader.readline(), 20)
        return int(line.split()[1])

    async def ended(self) -> bool:
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 20) is not None
        return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self.writer.wait_closed()


@pytest.mark.slow
async def test_a_body_may_be_so_large_and_no_larger(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        larger = bounds.LARGEST_BYTES + 1, bounds.LARGEST_BYTES + bounds.PASSED_BYTES
        for size, status in ((bounds.LARGEST_BYTES, 200), *((size, 413) for size in larger)):
            client = await Client.connect(port)
            await client.send(REVIEW + b" " * (size - len(REVIEW)))
            assert await client.status() == status
            await client.close()


@pytest.mark.slow
async def test_a_body_without_end_is_not_read_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        client = await Client.connect(port)
        await client.send(b" " * (bounds.LARGEST_BYTES + bounds.PASSED_BYTES + (1 << 17)), length=1 << 30)
        assert await client.status() == 413
        await client.close()


async def test_json_that_would_take_a_hundred_times_its_size_is_not_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        client = await Client.connect(port)
        await client.send(b"[" + b"[]," * (bounds.MAX_PARTS // 2) + b"[]]")
        assert await client.status() == 413
        assert b"commas and brackets" in await asyncio.wait_for(client.reader.read(), 20)
        await client.close()


@pytest.mark.slow
async def test_stalled_client_is_dropped_and_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BODY_SECONDS", 0.5)
    async with serving(tmp_path) as port:
        stalled = [await Client.connect(port) for _ in range(5)]
        for client in stalled:
            await client.send(b"{", length=1000)
        good = await Client.connect(port)
        await good.send(REVIEW)
        assert await good.status() == 200
        for client in stalled:
            assert await client.status() == 408
            assert await client.ended()
        for client in (*stalled, good):
            await client.close()


@pytest.mark.slow
async def test_half_a_header_is_not_waited_for_and_an_unused_connection_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.ConnectionWatch.__init__, "__defaults__", (0.5, 120.0))
    async with serving(tmp_path) as port:
        unused, half, again = [await Client.connect(port) for _ in range(3)]
        await again.send(REVIEW)
        assert await again.status() == 200
        for client in (half, again):
            client.writer.write(b"POST /mutate HTTP/1.1\r\nHost:")
            await client.writer.drain()
        for client in (half, again):
            assert await client.ended()
        await unused.send(REVIEW)
        assert await unused.status() == 200
        for client in (unused, half, again):
            await client.close()


async def test_an_idle_connection_ends_with_an_answer_that_loses_no_review(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For used and unused connections; the client need not close them."""
    assert connections.IDLE_SECONDS > 90  # of Go's http.Transport, as the API server sets it: it closes first
    monkeypatch.setattr(connections.ConnectionWatch.__init__, "__defaults__", (10.0, 0.5))
    monkeypatch.setattr(connections, "FRESH_SECONDS", 0.0)
    async with serving(tmp_path) as port:
        unused, used = [await Client.connect(port) for _ in range(2)]
        await used.send(REVIEW)
        assert await used.status() == 200
        await used.reader.readuntil(b"}}")
        for client in (unused, used):
            assert await asyncio.wait_for(client.reader.readexactly(len(connections.SEND_AGAIN)), 20) == (
                connections.SEND_AGAIN
            )
            assert await client.ended()
            await client.close()


async def test_silent_connections_give_their_places_to_reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any number of connections: some are served, some wait, and each new one gets the slot of an idle one."""
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(bounds, "MAX_OF_ADDRESS", 8)
    monkeypatch.setattr(connections, "FRESH_SECONDS", 0.5)
    async with serving(tmp_path) as port:
        silent = [await asyncio.wait_for(Client.connect(port), 20) for _ in range(9)]
        good = await asyncio.wait_for(Client.connect(port), 20)
        await good.send(REVIEW)
        assert await good.status() == 200
        assert await silent[0].ended()  # the one that has been idle for longest
        for client in (*silent, good):
            await client.close()


async def test_address_at_its_limit_does_not_block_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not by incomplete requests, whose connections are not idle."""
    monkeypatch.setattr(bounds, "MAX_OF_ADDRESS", 4)
    monkeypatch.setattr(bounds, "MAX_WAITING", 8)
    async with serving(tmp_path) as port:
        held = [await Client.connect(port) for _ in range(4)]
        for client in held:
            client.writer.write(b"POST /mutate HTTP/1.1\r\nHost:")
            await client.writer.drain()
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        refused, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(refused.read(), 5) == b""
        writer.close()
        good = await asyncio.wait_for(Client.connect(port, source="127.0.0.2"), 5)
        await good.send(REVIEW)
        assert await good.status() == 200
        await good.close()
        for client in held[1:]:
            await client.close()
        last = await asyncio.wait_for(Client.connect(port, source="127.0.0.3"), 20)
        await last.close()
        await held[0].close()
        for _, waits in waiting:
            waits.close()


async def test_while_connections_wait_an_answer_ends_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_CONNECTIONS", 1)
    async with serving(tmp_path) as port:
        first = await Client.connect(port)
        await first.send(REVIEW[:-1], length=len(REVIEW))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        first.writer.write(REVIEW[-1:])
        assert await first.status() == 200
        assert b"Connection: close" in await first.reader.readuntil(b"\r\n\r\n")
        assert await first.ended()
        await asyncio.wait_for(writer.start_tls(unchecked()), 20)
        second = Client(reader, writer)
        await second.send(REVIEW)
        assert await second.status() == 200
        for client in (first, second):
            await client.close()


@pytest.mark.slow
async def test_replica_stays_small_with_many_connections(tmp_path: Path) -> None:
    """As many connections as a replica serves of one address, each with most of a body."""
    async with other_process(tmp_path) as (port, resident_bytes):
        at_rest = resident_bytes()
        writers = await asyncio.gather(*(begins(port) for _ in range(bounds.MAX_OF_ADDRESS)))
        largest = resident_bytes() - at_rest
        good = await asyncio.wait_for(Client.connect(port, source="127.0.0.2"), 20)
        await good.send(REVIEW)
        assert await good.status() == 200
        largest = max(largest, resident_bytes() - at_rest)
        assert largest < 200 << 20  # twice as many have room in half a GiB
        await good.close()
        for writer in writers:
            writer.transport.abort()


class Body:
    """A request of which only the content is read."""

    def __init__(self, *chunks: bytes) -> None:
        self.content, self.chunks = self, [*chunks, b""]

    async def read(self, _: int) -> bytes:
        return self.chunks.pop(0)


async def test_bodies_beyond_the_limit_wait_until_others_are_answered() -> None:
    in_hand, order = bounds.InFlightLimiter(10), []

    async def work(name: str, size: int, goes: asyncio.Event) -> None:
        async with in_hand.body(Body(b"x" * size)) as body:  # type: ignore[arg-type]
            order.append((name, len(body)))
            await goes.wait()

    first, second = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(work("first", 8, first))]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(work("second", 5, second)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (order, in_hand.in_flight_bytes) == ([("first", 8)], 8)
    first.set()
    second.set()
    await asyncio.gather(*tasks)
    assert (order, in_hand.in_flight_bytes) == ([("first", 8), ("second", 5)], 0)


def authority(directory: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """Return a file with an authority, and a client with a certificate that the authority has signed (itself)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = directory / f"{name}.crt", directory / f"{name}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(certificate, secret)
    return certificate, context


async def answered(port: int, context: ssl.SSLContext | None) -> bool:
    try:
        client = await Client.connect(port, context)
        await client.send(REVIEW)
        line = await client.reader.readline()
    except OSError:  # ssl.SSLError among it
        return False
    await client.close()
    return b"200" in line


async def test_client_ca_admits_only_clients_with_its_certificate(tmp_path: Path) -> None:
    trusted, of_api_server = authority(tmp_path, "trusted")
    _, of_another = authority(tmp_path, "another")
    async with serving(tmp_path / "tls", trusted) as port:
        assert await answered(port, of_api_server)
        assert not await answered(port, None)
        assert not await answered(port, of_another)


def test_an_authority_that_is_not_there_is_named() -> None:
    with pytest.raises(webhook_settings.UsageError, match="--client-ca-file /nowhere is not a file"):
        webhook_settings.parse(["--client-ca-file=/nowhere"], {})


def test_a_line_that_any_client_can_cause_is_rationed() -> None:
    now = 0.0
    lines = bounds.LogRation(clock=lambda: now)
    assert [lines.allow() for _ in range(1000)] == [0, *[None] * 999]
    now = 1.0
    assert lines.allow() == 999
