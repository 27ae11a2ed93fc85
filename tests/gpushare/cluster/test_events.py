from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gpushare import contract
from gpushare.cluster import api_client, api_errors, event_series, events

pytestmark = pytest.mark.apiserver


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def telling(recorder: events.Recorder) -> AsyncIterator[None]:
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


async def told(api: api_client.ApiClient, namespace: str, name: str) -> list[dict[str, Any]]:
    entries = (await api.list(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", keep=api_client.whole)).items
    return [event for event in entries if event["regarding"].get("name") == name]


async def test_an_event_stands_under_its_object(
    api: api_client.ApiClient, recorder: events.Recorder, namespace: str
) -> None:
    async with telling(recorder):
        recorder.record(pod("a", namespace), contract.EVENT_GATED, "no GPU has 8Gi free", type="Warning")
    (event,) = await told(api, namespace, "a")
    assert (event["reason"], event["note"], event["type"]) == ("Gated", "no GPU has 8Gi free", "Warning")
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": namespace, "uid": "uid-a"
    }  # fmt: skip
    assert (event["reportingController"], event["reportingInstance"]) == ("gpushare.io/webhook", "webhook-0")


async def test_kubectl_shows_it(api_server: Any, recorder: events.Recorder, namespace: str) -> None:
    async with telling(recorder):
        recorder.record(pod("shown", namespace), contract.EVENT_GATED, "no GPU has 8Gi free")
    shown = api_server.kubectl("events", "--for=Pod/shown", f"--namespace={namespace}")
    assert "no GPU has 8Gi free" in shown


async def test_a_waiting_pod_makes_one_event_whose_series_counts(
    api: api_client.ApiClient, recorder: events.Recorder, clock: Clock, namespace: str
) -> None:
    async with telling(recorder):
        recorder.record(pod("b", namespace), contract.EVENT_GATED, "no GPU has 8Gi free")
        await recorder.flush(30.0)
        first = await told(api, namespace, "b")
        for _ in range(999):
            recorder.record(pod("b", namespace), contract.EVENT_GATED, "no GPU has 8Gi free")
        await recorder.flush(30.0)
        assert await told(api, namespace, "b") == first
        assert "series" not in first[0]
        clock.now += event_series.UPDATE_SECONDS
        recorder.record(pod("b", namespace), contract.EVENT_GATED, "no GPU has 8Gi free")
    (event,) = await told(api, namespace, "b")
    assert event["series"]["count"] == 1001


async def test_an_event_that_expired_on_the_server_is_made_again(
    api: api_client.ApiClient, recorder: events.Recorder, clock: Clock, namespace: str
) -> None:
    async with telling(recorder):
        recorder.record(pod("c", namespace), contract.EVENT_GATED, "wait")
        await recorder.flush(30.0)
        (event,) = await told(api, namespace, "c")
        await api.delete(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/{event['metadata']['name']}")
        clock.now += event_series.UPDATE_SECONDS
        recorder.record(pod("c", namespace), contract.EVENT_GATED, "wait")
    (event,) = await told(api, namespace, "c")
    assert event["series"]["count"] == 2


async def test_a_note_of_any_length_and_language_is_cut_to_what_the_api_takes(
    api: api_client.ApiClient, recorder: events.Recorder, namespace: str
) -> None:
    async with telling(recorder):
        recorder.record(pod("d", namespace), contract.EVENT_GATED, "ü" * 2000)
    (event,) = await told(api, namespace, "d")
    assert len(event["note"].encode()) <= events.NOTE_BYTES
    assert event["note"].endswith("ü…")


async def test_an_event_about_a_cluster_scoped_object_lives_in_default(
    api: api_client.ApiClient, recorder: events.Recorder
) -> None:
    node = {"apiVersion": "gpushare.io/v1alpha1", "kind": "GPUNode", "metadata": {"name": "node-ev", "uid": "u"}}
    async with telling(recorder):
        recorder.record(node, contract.EVENT_EXPIRED, "the pod never appeared")
    (event,) = await told(api, "default", "node-ev")
    await api.delete(f"/apis/events.k8s.io/v1/namespaces/default/events/{event['metadata']['name']}")


async def test_what_the_api_server_does_not_take_is_logged_and_holds_up_nothing(
    api: api_client.ApiClient, recorder: events.Recorder, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    dropped: list[str] = []
    async with telling(recorder):
        for name, there in (("lost", "no-such-namespace"), ("e", namespace)):
            on_drop = functools.partial(dropped.append, name)
            recorder.record(pod(name, there), contract.EVENT_GATED, "wait", on_drop=on_drop)
    assert dropped == ["lost"]
    assert len(await told(api, namespace, "e")) == 1
    assert recorder.dropped == 1
    (record,) = caplog.records
    assert record.getMessage() == "Dropped an Event"
    assert record.__dict__["regarding"]["name"] == "lost"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0.01)


class Failing(api_client.ApiClient):
    """It asks nobody: each creation is answered by the next of `failures`, and by success from then on."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.created: list[str] = []

    async def create(self, _: str, body: Any, **__: object) -> dict[str, Any]:
        name = body["regarding"]["name"]
        self.created.append(name)
        if self.failures:
            raise self.failures.pop(0)
        return {}


async def test_what_the_api_server_cannot_take_now_is_written_later_and_others_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", (0.01,))
    monkeypatch.setattr(events, "FLUSH_PAUSE_SECONDS", 0.01)
    # The first is asked to come back in an hour.
    api = Failing(api_errors.Unavailable("slow", retry_after_seconds=3600.0), api_errors.Forbidden("not read yet"))
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x")
    async with telling(recorder):
        for name in ("a", "b"):
            recorder.record(pod(name, "default"), contract.EVENT_GATED, "wait")
    assert api.created == ["a", "b", "a", "b"]
    assert recorder.dropped == 0


async def test_what_was_written_though_no_answer_came_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", (0.01,))
    api = Failing(api_errors.Unavailable("no answer"), api_errors.AlreadyExists("it is there"))
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x")
    async with telling(recorder):
        recorder.record(pod("a", "default"), contract.EVENT_GATED, "wait")
    assert api.created == ["a", "a"]
    assert recorder.dropped == 0


async def test_what_could_not_be_written_for_long_is_dropped(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", (0.01,))
    api = Failing(*[api_errors.Unavailable("down")] * 1000)
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x", clock=clock)
    dropped = asyncio.Event()
    async with telling(recorder):
        recorder.record(pod("a", "default"), contract.EVENT_GATED, "wait", on_drop=dropped.set)
        await until(lambda: len(api.created) > 2)
        assert not dropped.is_set()
        clock.now += events.MAX_SECONDS[api_errors.Unavailable]
        await asyncio.wait_for(dropped.wait(), 20)
    assert recorder.dropped == 1


async def test_who_fails_again_and_again_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE_SECONDS", (3600.0,))
    api = Failing(*[api_errors.Unavailable("a webhook of somebody's fails")] * 5)
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x")
    task = asyncio.create_task(recorder.run())
    for name in "abcdef":
        recorder.record(pod(name, "default"), contract.EVENT_GATED, "wait")
    await until(lambda: len(api.created) == 6)
    await recorder.flush(20.0)  # what waits for an hour is tried at once
    assert sorted(api.created) == [*"aabbccddeef"]
    task.cancel()


async def test_who_ends_while_the_api_server_is_away_says_how_much_is_left(caplog: pytest.LogCaptureFixture) -> None:
    api = Failing(*[api_errors.Unavailable("down")] * 1000)
    recorder = events.Recorder(api, controller="gpushare.io/agent", instance="x")
    task = asyncio.create_task(recorder.run())
    for name in "ab":
        recorder.record(pod(name, "default"), contract.EVENT_GATED, "wait")
    await recorder.flush(0.5)
    task.cancel()
    (record,) = caplog.records
    assert (record.getMessage(), record.__dict__["events"]) == ("Dropped Events at the end", 2)


async def test_a_full_queue_drops_and_says_so_and_never_waits() -> None:
    recorder = events.Recorder(Failing(), controller="gpushare.io/webhook", instance="x")
    dropped: list[int] = []
    for number in range(events.MAX_QUEUED + 5):
        on_drop = functools.partial(dropped.append, number)
        recorder.record(pod(f"p{number}", "default"), contract.EVENT_GATED, "wait", on_drop=on_drop)
    assert dropped == [events.MAX_QUEUED + number for number in range(5)]
    assert recorder.dropped == 5
