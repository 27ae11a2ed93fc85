from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_client, api_errors, events

pytestmark = pytest.mark.apiserver


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def running(recorder: events.Recorder) -> AsyncIterator[None]:
    task = asyncio.create_task(recorder.run())
    try:
        yield
        await recorder.flush(30.0)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(api: api_client.ApiClient, clock: Clock) -> events.Recorder:
    return events.Recorder(api, controller="gpushare.io/webhook", instance="webhook-0", clock=clock)


def pod(name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}}


async def stored_events(api: api_client.ApiClient, namespace: str, name: str) -> list[dict[str, Any]]:
    entries = (await api.list(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", keep=api_client.whole)).items
    return [event for event in entries if event["regarding"].get("name") == name]


async def test_an_event_regards_its_object(
    api: api_client.ApiClient, recorder: events.Recorder, namespace: str
) -> None:
    async with running(recorder):
        recorder.record(pod("a", namespace), contract.EVENT_GATED, "no GPU has 8Gi free", type="Warning")
    (event,) = await stored_events(api, namespace, "a")
    assert (event["reason"], event["note"], event["type"]) == ("Gated", "no GPU has 8Gi free", "Warning")
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": namespace, "uid": "uid-a"
    }  # fmt: skip
    assert (event["reportingController"], event["reportingInstance"]) == ("gpushare.io/webhook", "webhook-0")


async def test_kubectl_shows_the_event(api_server: Any, recorder: events.Recorder, namespace: str) -> None:
    async with running(recorder):
        recorder.record(pod("shown", namespace), contract.EVENT_GATED, "no GPU has 8Gi free")
    shown = api_server.kubectl("events", "--for=Pod/shown", f"--namespace={namespace}")
    assert "no GPU has 8Gi free" in shown


async def test_repeated_events_are_counted_in_one_series(
    api: api_client.ApiClient, recorder: events.Recorder, clock: Clock, namespace: str
) -> None:
    async with running(recorder):
        recorder.record(pod("b", namespace), contract.EVENT_GATED, "no GPU has 8Gi free")
        await recorder.flush(30.0)
        first = await stored_events(api, namespace, "b")
        for _ in range(999):
            recorder.record(pod("b", namespace), contract.EVENT_GATED, "no GPU has 8Gi free")
        await recorder.flush(30.0)
        assert await stored_events(api, namespace, "b") == first
        assert "series" not in first[0]
        clock.now += events.UPDATE_SECONDS
        recorder.record(pod("b", namespace), contract.EVENT_GATED, "no GPU has 8Gi free")
    (event,) = await stored_events(api, namespace, "b")
    assert event["series"]["count"] == 1001


async def test_an_event_that_expired_on_the_server_is_recreated(
    api: api_client.ApiClient, recorder: events.Recorder, clock: Clock, namespace: str
) -> None:
    async with running(recorder):
        recorder.record(pod("c", namespace), contract.EVENT_GATED, "wait")
        await recorder.flush(30.0)
        (event,) = await stored_events(api, namespace, "c")
        await api.delete(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/{event['metadata']['name']}")
        clock.now += events.UPDATE_SECONDS
        recorder.record(pod("c", namespace), contract.EVENT_GATED, "wait")
    (event,) = await stored_events(api, namespace, "c")
    assert event["series"]["count"] == 2


async def test_long_notes_are_cut_to_the_limit_of_the_api(
    api: api_client.ApiClient, recorder: events.Recorder, namespace: str
) -> None:
    async with running(recorder):
        recorder.record(pod("d", namespace), contract.EVENT_GATED, "ü" * 2000)
    (event,) = await stored_events(api, namespace, "d")
    assert len(event["note"].encode()) <= events.NOTE_BYTES
    assert event["note"].endswith("ü…")


async def test_an_event_about_a_cluster_scoped_object_lives_in_default(
    api: api_client.ApiClient, recorder: events.Recorder
) -> None:
    node = {"apiVersion": "gpushare.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": "node-ev", "uid": "u"}}
    async with running(recorder):
        recorder.record(node, contract.EVENT_EXPIRED, "the pod never appeared")
    (event,) = await stored_events(api, "default", "node-ev")
    await api.delete(f"/apis/events.k8s.io/v1/namespaces/default/events/{event['metadata']['name']}")


async def test_a_rejected_event_is_logged_and_does_not_delay_others(
    api: api_client.ApiClient, recorder: events.Recorder, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    dropped: list[str] = []
    async with running(recorder):
        for name, there in (("lost", "no-such-namespace"), ("e", namespace)):
            on_drop = functools.partial(dropped.append, name)
            recorder.record(pod(name, there), contract.EVENT_GATED, "wait", on_drop=on_drop)
    assert dropped == ["lost"]
    assert len(await stored_events(api, namespace, "e")) == 1
    assert recorder.dropped == 1
    (record,) = caplog.records
    assert record.getMessage() == "Dropped an Event"
    assert record.__dict__["regarding"]["name"] == "lost"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0.01)


class Failing(api_client.ApiClient):
    """A client without a server: each creation raises the next of `failures`, and succeeds once they are used up."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.created: list[str] = []

    async def create(self, _: str, body: Any, **__: object) -> dict[str, Any]:
        name = body["regarding"]["name"]
        self.created.append(name)
        if self.failures:
            raise self.failures.pop(0)
        return {}


async def test_events_are_retried_without_delaying_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", (0.01,))
    monkeypatch.setattr(events, "FLUSH_PAUSE_SECONDS", 0.01)
    # The server asks to retry the first Event in an hour.
    api = Failing(api_errors.Unavailable("slow", retry_after_seconds=3600.0), api_errors.Forbidden("not read yet"))
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x")
    async with running(recorder):
        for name in ("a", "b"):
            recorder.record(pod(name, "default"), contract.EVENT_GATED, "wait")
    assert api.created == ["a", "b", "a", "b"]
    assert recorder.dropped == 0


async def test_an_event_that_already_exists_on_retry_counts_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", (0.01,))
    api = Failing(api_errors.Unavailable("no answer"), api_errors.AlreadyExists("it is there"))
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x")
    async with running(recorder):
        recorder.record(pod("a", "default"), contract.EVENT_GATED, "wait")
    assert api.created == ["a", "a"]
    assert recorder.dropped == 0


async def test_an_event_that_keeps_failing_is_dropped(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", (0.01,))
    api = Failing(*[api_errors.Unavailable("down")] * 1000)
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x", clock=clock)
    dropped = asyncio.Event()
    async with running(recorder):
        recorder.record(pod("a", "default"), contract.EVENT_GATED, "wait", on_drop=dropped.set)
        await until(lambda: len(api.created) > 2)
        assert not dropped.is_set()
        clock.now += events.MAX_SECONDS[api_errors.Unavailable]
        await asyncio.wait_for(dropped.wait(), 20)
    assert recorder.dropped == 1


async def test_failing_events_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", (3600.0,))
    api = Failing(*[api_errors.Unavailable("another webhook fails")] * 5)
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x")
    task = asyncio.create_task(recorder.run())
    for name in "abcdef":
        recorder.record(pod(name, "default"), contract.EVENT_GATED, "wait")
    await until(lambda: len(api.created) == 6)
    await recorder.flush(20.0)  # also Events whose retry is an hour away
    assert sorted(api.created) == [*"aabbccddeef"]
    task.cancel()


async def test_flush_logs_how_many_events_it_could_not_write(caplog: pytest.LogCaptureFixture) -> None:
    api = Failing(*[api_errors.Unavailable("down")] * 1000)
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x")
    task = asyncio.create_task(recorder.run())
    for name in "ab":
        recorder.record(pod(name, "default"), contract.EVENT_GATED, "wait")
    await recorder.flush(0.5)
    task.cancel()
    (record,) = caplog.records
    assert (record.getMessage(), record.__dict__["events"]) == ("Could not write all Events", 2)


async def test_a_full_queue_drops_events_without_waiting() -> None:
    recorder = events.Recorder(Failing(), controller="gpushare.io/webhook", instance="x")
    dropped: list[int] = []
    for number in range(events.MAX_QUEUED + 5):
        on_drop = functools.partial(dropped.append, number)
        recorder.record(pod(f"p{number}", "default"), contract.EVENT_GATED, "wait", on_drop=on_drop)
    assert dropped == [events.MAX_QUEUED + number for number in range(5)]
    assert recorder.dropped == 5
