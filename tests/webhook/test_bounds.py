"""Whoever reaches the port: how long and how much he may send, and who is answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpushare import contract
from webhook import bounds, connections, review, server, webhook_settings
from webhook.certificates import issuing
from webhook.certificates.rotation import RotationStep
from webhook.certificates.tls import Tls

REVIEW = json.dumps(
    {
        "apiVersion": review.API_VERSION,
        "kind": "AdmissionReview",
        "request": {"uid": "u-1", "operation": "CREATE", "object": {}},
    }
).encode()


async def admit(_: review.AdmissionRequest) -> review.ReviewResponse:
    return review.allow("ignored")


@contextlib.asynccontextmanager
async def serving(directory: Path, client_ca_file: Path | None = None) -> AsyncIterator[int]:
    tls = Tls(directory, client_ca_file)
    tls.load(issuing.take(RotationStep.START, None, ("127.0.0.1",), now=datetime.datetime.now(datetime.UTC)))
    async with server.serve(admit, tls.context, host="127.0.0.1", port=0) as port:
        yield port


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None = None) -> Client:
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

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
        await client.send(b"[" + b"[]," * (bounds.MOST_PARTS // 2) + b"[]]")
        assert await client.status() == 413
        assert b"commas and brackets" in await asyncio.wait_for(client.reader.read(), 20)
        await client.close()


@pytest.mark.slow
async def test_who_stops_in_the_middle_is_left_and_others_are_answered(
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
    monkeypatch.setattr(connections.ConnectionWatch.__init__, "__defaults__", (0.5,))
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


class Body:
    """A request of which only the content is looked at."""

    def __init__(self, *chunks: bytes) -> None:
        self.content, self.chunks = self, [*chunks, b""]

    async def read(self, _: int) -> bytes:
        return self.chunks.pop(0)


async def test_bodies_wait_for_each_other_and_what_was_answered_counts_no_more() -> None:
    in_hand, order = bounds.InHand(10), []

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
    assert (order, in_hand.taken_bytes) == ([("first", 8)], 8)
    first.set()
    second.set()
    await asyncio.gather(*tasks)
    assert (order, in_hand.taken_bytes) == ([("first", 8), ("second", 5)], 0)


def authority(directory: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A file with an authority, and a client that shows a certificate which that authority has signed (itself)."""
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


async def test_with_an_authority_only_who_has_its_certificate_is_answered(tmp_path: Path) -> None:
    trusted, of_api_server = authority(tmp_path, "trusted")
    _, of_another = authority(tmp_path, "another")
    async with serving(tmp_path / "tls", trusted) as port:
        assert await answered(port, of_api_server)
        assert not await answered(port, None)
        assert not await answered(port, of_another)


def test_an_authority_that_is_not_there_is_named() -> None:
    with pytest.raises(webhook_settings.UsageError, match="--client-ca-file /nowhere is not a file"):
        webhook_settings.parse(["--client-ca-file=/nowhere"], {})
