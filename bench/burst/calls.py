"""Raw HTTP/1.1 to the API server over persistent connections, so that the sender is not the bottleneck."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import json
import multiprocessing
import ssl
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib import parse

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
CALL_SECONDS = 30.0


@dataclass(frozen=True)
class Server:
    url: str
    ca: Path
    certificate: Path
    key: Path

    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON

    def wire(self, host: str) -> bytes:
        lines = (
            f"{self.method} {self.path} HTTP/1.1",
            f"Host: {host}",
            "Accept: application/json",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
        )
        return "\r\n".join((*lines, "", "")).encode() + self.body


@dataclass(frozen=True)
class Answer:
    status: int
    seconds: float
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def call(method: str, path: str, body: Any = None, content_type: str = JSON) -> Call:
    return Call(method, path, b"" if body is None else json.dumps(body).encode(), content_type)


def send(server: Server, calls: Iterable[Call], *, at_once: int = 32) -> list[Answer]:
    """Send all calls, and return the answers in their order."""
    return asyncio.run(_send(server, list(calls), at_once))


def ask(server: Server, made: Call) -> Any:
    """Return the JSON answer to one call. Raises SystemExit for a status other than 2xx."""
    answer = send(server, [made], at_once=1)[0]
    if not 200 <= answer.status < 300:
        raise SystemExit(f"{made.method} {made.path}: {answer.status} {answer.body.decode()[:500]}")
    return answer.json()


def all_well(answers: Sequence[Answer]) -> None:
    bad = [answer for answer in answers if not 200 <= answer.status < 300]
    if bad:
        raise SystemExit(f"{len(bad)} of {len(answers)} calls failed: {bad[0].status} {bad[0].body.decode()[:500]}")


def burst(server: Server, calls: Sequence[Call], *, at_once: int, processes: int) -> tuple[float, list[Answer]]:
    """Send the calls from separate processes; return the seconds until the last answer, and the answers."""
    spawn = multiprocessing.get_context("spawn")
    start = (spawn.Barrier(processes),)  # which only the start of a process can hand over
    with concurrent.futures.ProcessPoolExecutor(processes, spawn, _take_start, start) as pool:
        parts = [list(calls[number::processes]) for number in range(processes)]
        sent = [pool.submit(_part, server, part, at_once // processes) for part in parts]
        done = [future.result(300) for future in sent]
    began, ended = min(part[0] for part in done), max(part[1] for part in done)
    return ended - began, [answer for *_, answers in done for answer in answers]


_started: Any = None


def _take_start(start: Any) -> None:
    global _started
    _started = start


def _part(server: Server, calls: list[Call], at_once: int) -> tuple[float, float, list[Answer]]:
    return asyncio.run(_timed(server, calls, at_once, _started))


async def _timed(server: Server, calls: list[Call], at_once: int, start: Any) -> tuple[float, float, list[Answer]]:
    connections = await _connected(server, at_once)
    start.wait(60)
    began = time.monotonic()
    answers = await _work(connections, calls, server)
    return began, time.monotonic(), answers


async def _send(server: Server, calls: list[Call], at_once: int) -> list[Answer]:
    return await _work(await _connected(server, min(at_once, len(calls))), calls, server)


async def _connected(server: Server, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address, tls = parse.urlsplit(server.url), server.tls()
    return [await asyncio.open_connection(address.hostname, address.port, ssl=tls) for _ in range(count)]


async def _work(
    connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]], calls: list[Call], server: Server
) -> list[Answer]:
    host = parse.urlsplit(server.url).netloc
    due = collections.deque(enumerate(calls))
    answers: dict[int, Answer] = {}

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while due:
            number, made = due.popleft()
            began = time.monotonic()
            writer.write(made.wire(host))
            async with asyncio.timeout(CALL_SECONDS):
                status, body = await _answer(reader)
            answers[number] = Answer(status, time.monotonic() - began, body)
        writer.close()

    await asyncio.gather(*(work(*connection) for connection in connections))
    return [answers[number] for number in range(len(calls))]


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head[1:] if b": " in line)
    if b"content-length" in fields:
        return int(head[0][9:12]), await reader.readexactly(int(fields[b"content-length"]))
    chunks = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return int(head[0][9:12]), b"".join(chunks)
