from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable

import aiohttp
import prometheus_client
import pytest

from gpushare.daemon import probes


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("gpushare_reviews", "Reviews answered.", registry=registry).inc(3)
    return registry


async def get(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as answer,
    ):
        return answer.status, answer.content_type, await answer.text()


async def test_a_process_is_healthy_before_it_is_ready(registry: prometheus_client.CollectorRegistry) -> None:
    checks = {"gpunodes": lambda: "the GPUNodes have not been listed yet"}
    async with probes.serve(checks, registry, host="127.0.0.1", port=0) as port:
        assert await get(port, "/healthz") == (200, "text/plain", "ok\n")


async def test_readiness_lists_the_failed_checks(registry: prometheus_client.CollectorRegistry) -> None:
    missing: dict[str, str | None] = {"gpunodes": "not listed yet", "certificate": "expired an hour ago", "x": None}
    checks = {name: lambda name=name: missing[name] for name in missing}
    async with probes.serve(checks, registry, host="127.0.0.1", port=0) as port:
        status, _, text = await get(port, "/readyz")
        assert (status, text) == (500, "gpunodes: not listed yet\ncertificate: expired an hour ago\n")
        missing.update(gpunodes=None, certificate=None)
        assert await get(port, "/readyz") == (200, "text/plain", "ok\n")


async def test_a_check_that_raises_is_not_ready_and_is_logged(
    registry: prometheus_client.CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> str | None:
        raise LookupError("no certificate")

    async with probes.serve({"certificate": broken}, registry, host="127.0.0.1", port=0) as port:
        status, _, text = await get(port, "/readyz")
    assert (status, text) == (500, "certificate: the check itself failed: no certificate\n")
    assert caplog.records[0].__dict__["check"] == "certificate"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("*/*", "text/plain"), ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text")],
)
async def test_metrics_come_from_the_given_registry(
    registry: prometheus_client.CollectorRegistry, accept: str, content_type: str
) -> None:
    async with probes.serve({}, registry, host="127.0.0.1", port=0) as port:
        status, got, text = await get(port, "/metrics", Accept=accept)
    assert (status, got) == (200, content_type)
    assert "gpushare_reviews_total 3.0" in text
    assert "python_info" not in text


async def test_a_document_is_served_once_it_exists(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    known: dict[str, object] = {}
    documents = {"/audit": lambda: known or None}
    async with probes.serve({}, registry, host="127.0.0.1", port=0, documents=documents) as port:
        status, _, text = await get(port, "/audit")
        assert (status, text) == (503, "no data yet: try again in a few seconds\n")
        known["node"] = "a"
        assert await get(port, "/audit") == (200, "application/json", '{"node": "a"}')


async def test_other_paths_are_not_found(registry: prometheus_client.CollectorRegistry) -> None:
    async with probes.serve({}, registry, host="127.0.0.1", port=0) as port:
        assert (await get(port, "/"))[0] == 404


async def test_served_pages_contain_no_terminal_control_characters(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    evil = "\x1b[2J\x7f\x9b31m\u202e\u2028"
    prometheus_client.Gauge("gpus", "GPUs.", ["model"], registry=registry).labels(f"T4{evil}\n").set(1)
    documents = {"/document": lambda: {"model": evil}}
    async with probes.serve({"gpu": lambda: evil}, registry, host="127.0.0.1", port=0, documents=documents) as port:
        for path in ("/metrics", "/readyz", "/document"):
            _, _, text = await get(port, path)
            assert "[2J" in text
            assert text.replace("\n", "").isprintable()
        _, _, text = await get(port, "/document")
        assert json.loads(text) == {"model": evil}
        _, _, text = await get(port, "/metrics")
        assert 'gpus{model="T4�[2J��31m��\\n"} 1.0' in text


async def silent(port: int, count: int, address: str = "127.0.0.1") -> list[asyncio.StreamWriter]:
    made = [await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)) for _ in range(count)]
    return [writer for _, writer in made]


async def test_health_is_answered_when_all_connections_are_in_use(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    """With more connections than allowed per address and in total, a new one closes the oldest."""
    async with probes.serve({}, registry, host="127.0.0.1", port=0) as port:
        writers = []
        for number in range(2, 2 + probes.MAX_CONNECTIONS // probes.MAX_CONNECTIONS_PER_ADDRESS + 1):
            writers += await silent(port, probes.MAX_CONNECTIONS_PER_ADDRESS + 1, f"127.0.0.{number}")
            assert await get(port, "/healthz") == (200, "text/plain", "ok\n")
        writers += await silent(port, 2 * probes.MAX_CONNECTIONS_PER_ADDRESS)
        assert await get(port, "/healthz") == (200, "text/plain", "ok\n")
        assert (await get(port, "/metrics"))[0] == 200
        for writer in writers:
            writer.transport.abort()


async def test_connections_are_bounded_per_address_and_in_total(
    registry: prometheus_client.CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[probes.ProbeConnections] = []

    class Counted(probes.ProbeConnections):
        def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
            super().__init__(make)
            made.append(self)

    monkeypatch.setattr(probes, "ProbeConnections", Counted)
    monkeypatch.setattr(probes, "MAX_CONNECTIONS", 6)
    monkeypatch.setattr(probes, "MAX_CONNECTIONS_PER_ADDRESS", 4)
    async with probes.serve({}, registry, host="127.0.0.1", port=0) as port:
        writers = await silent(port, 10)
        assert (await get(port, "/metrics"))[0] == 200
        assert len(made[0]) <= 4
        writers += await silent(port, 10, "127.0.0.2")
        assert (await get(port, "/metrics"))[0] == 200
        assert len(made[0]) <= 6
        for writer in writers:
            writer.transport.abort()
        async with asyncio.timeout(20):
            while len(made[0]):
                await get(port, "/readyz")


async def test_a_connection_serves_one_request_and_times_out(
    registry: prometheus_client.CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with probes.serve({}, registry, host="127.0.0.1", port=0) as port:
        for path in (b"/metrics", b"/healthz", b"/readyz"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write((b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n") * 200)
            assert (await asyncio.wait_for(reader.read(), 20)).count(b"HTTP/1.1 200") == 1
            writer.close()
        monkeypatch.setattr(probes, "MAX_SECONDS", 0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /hea")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_a_health_request_in_two_pieces_is_answered(registry: prometheus_client.CollectorRegistry) -> None:
    async with probes.serve({}, registry, host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /hea")
        await asyncio.sleep(0)
        await get(port, "/readyz")  # the server has read the first piece by then
        writer.write(b"lthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"ok\n")
        writer.close()


def test_rendering_pages_uses_a_bounded_share_of_the_time() -> None:
    now = worked = 0.0

    def make() -> bytes:
        nonlocal now, worked
        now, worked = now + 0.01, worked + 0.01
        return b"%.2f" % now

    crowded = True
    pages = probes.Pages(lambda: crowded, clock=lambda: now)
    assert pages.get("a", make) == b"0.01"
    while now < 10.0:
        page = pages.get("a", make)
        assert page is not None
        assert now - float(page) < 0.06  # no page is stale
        now += 0.001
    assert worked < 2.1
    assert pages.get("b", lambda: None) is None
    assert pages.get("b", lambda: b"known") == b"known"
    crowded = False
    assert [pages.get("a", make) for _ in range(2)] == [b"%.2f" % (now - 0.01), b"%.2f" % now]
