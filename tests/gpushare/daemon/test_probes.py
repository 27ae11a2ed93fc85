from __future__ import annotations

import json

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


async def test_a_healthy_process_says_so_though_it_is_not_ready(registry: prometheus_client.CollectorRegistry) -> None:
    checks = {"gpunodes": lambda: "the GPUNodes have not been listed yet"}
    async with probes.serve(checks, registry, host="127.0.0.1", port=0) as port:
        assert await get(port, "/healthz") == (200, "text/plain", "ok\n")


async def test_readiness_lists_what_is_missing_until_nothing_is(registry: prometheus_client.CollectorRegistry) -> None:
    missing: dict[str, str | None] = {"gpunodes": "not listed yet", "certificate": "expired an hour ago", "x": None}
    checks = {name: lambda name=name: missing[name] for name in missing}
    async with probes.serve(checks, registry, host="127.0.0.1", port=0) as port:
        status, _, text = await get(port, "/readyz")
        assert (status, text) == (503, "gpunodes: not listed yet\ncertificate: expired an hour ago\n")
        missing.update(gpunodes=None, certificate=None)
        assert await get(port, "/readyz") == (200, "text/plain", "ok\n")


async def test_a_check_that_fails_is_not_ready_and_is_logged(
    registry: prometheus_client.CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> str | None:
        raise LookupError("no certificate")

    async with probes.serve({"certificate": broken}, registry, host="127.0.0.1", port=0) as port:
        status, _, text = await get(port, "/readyz")
    assert (status, text) == (503, "certificate: the check itself failed: no certificate\n")
    assert caplog.records[0].__dict__["check"] == "certificate"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("*/*", "text/plain"), ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text")],
)
async def test_metrics_are_of_the_registry_that_was_given(
    registry: prometheus_client.CollectorRegistry, accept: str, content_type: str
) -> None:
    async with probes.serve({}, registry, host="127.0.0.1", port=0) as port:
        status, got, text = await get(port, "/metrics", Accept=accept)
    assert (status, got) == (200, content_type)
    assert "gpushare_reviews_total 3.0" in text
    assert "python_info" not in text


async def test_a_document_is_made_for_whoever_asks_once_there_is_one(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    known: dict[str, object] = {}
    documents = {"/audit": lambda: known or None}
    async with probes.serve({}, registry, host="127.0.0.1", port=0, documents=documents) as port:
        status, _, text = await get(port, "/audit")
        assert (status, text) == (503, "nothing is known yet: ask again in a few seconds\n")
        known["node"] = "a"
        assert await get(port, "/audit") == (200, "application/json", '{"node": "a"}')


async def test_other_paths_are_not_found(registry: prometheus_client.CollectorRegistry) -> None:
    async with probes.serve({}, registry, host="127.0.0.1", port=0) as port:
        assert (await get(port, "/"))[0] == 404


async def test_nothing_that_is_served_is_obeyed_by_a_terminal(registry: prometheus_client.CollectorRegistry) -> None:
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
