from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare.cluster import api_client, api_errors, informer, object_store
from lab import access
from tests.gpushare.cluster import builders, tcp_proxy, waiting

pytestmark = pytest.mark.apiserver

NEVER: Final = "999999999999"  # a version that the API server never reaches
BEFORE_NEVER: Final = "999999999998"


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a watch of one second last one second, however late its headers arrive."""
    monkeypatch.setattr(informer, "MIN_WATCH_SECONDS", 0.0)


Told = asyncio.Queue[tuple[str, str]]
Keep = Callable[[dict[str, Any]], Any]


def listen(follower: informer.Informer) -> Told:
    """Subscribe a queue that receives (type, name) of every change."""
    feed: Told = asyncio.Queue()
    follower.subscribe(lambda change: feed.put_nowait((change.type.value, change.key.name)))
    return feed


@contextlib.asynccontextmanager
async def running(follower: informer.Informer) -> AsyncIterator[None]:
    """Run the informer until the block ends; an earlier error is raised."""
    async with asyncio.timeout(60):
        task = asyncio.create_task(follower.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_an_informer_lists_objects_and_reports_changes(api: api_client.ApiClient, config_maps: str) -> None:
    await api.create(config_maps, builders.config_map("before"))
    follower = informer.Informer(api, config_maps, label_selector="!skip")
    feed = listen(follower)
    assert follower.age_seconds == float("inf")
    async with running(follower):
        assert await feed.get() == ("ADDED", "before")
        await follower.synced.wait()
        await api.create(config_maps, builders.config_map("after"))
        assert await feed.get() == ("ADDED", "after")
        assert follower.age_seconds == 0.0
        await api.patch(f"{config_maps}/after", {"data": {"a": "1"}})
        assert await feed.get() == ("MODIFIED", "after")
        await api.patch(f"{config_maps}/after", {"metadata": {"labels": {"skip": "1"}}})
        assert await feed.get() == ("DELETED", "after")
        await api.delete(f"{config_maps}/before")
        assert await feed.get() == ("DELETED", "before")
        assert not follower.objects
    assert 0.0 <= follower.age_seconds < 60.0


async def test_a_late_subscriber_first_gets_the_current_objects(api: api_client.ApiClient, config_maps: str) -> None:
    await api.create(config_maps, builders.config_map("late"))
    follower = informer.Informer(api, config_maps, field_selector="metadata.name=late")
    async with running(follower):
        await follower.synced.wait()
        assert listen(follower).get_nowait() == ("ADDED", "late")
        assert "managedFields" not in next(iter(follower.objects.values()))["metadata"]


async def test_an_informer_starts_a_new_watch_when_one_ends(api: api_client.ApiClient, config_maps: str) -> None:
    follower = informer.Informer(api, config_maps, field_selector="metadata.name=again", watch_seconds=1)
    feed = listen(follower)
    assert await follower.step() == 0.0
    assert await follower.step() == 0.0
    await api.create(config_maps, builders.config_map("again"))
    async with asyncio.timeout(30):
        while feed.empty():  # a watch of one second may end before the API server sends the event
            assert await follower.step() == 0.0
    assert feed.get_nowait() == ("ADDED", "again")


async def test_an_informer_resumes_after_a_broken_connection(
    api_server: access.Access, api: api_client.ApiClient, config_maps: str, tmp_path: Path
) -> None:
    async with tcp_proxy.before(api_server.server) as proxy:
        kubeconfig = tcp_proxy.kubeconfig_through(api_server.kubeconfig, proxy.port, tmp_path / "kubeconfig")
        async with api_client.connect(kubeconfig) as unlucky:
            follower = informer.Informer(unlucky, config_maps, label_selector="cut")
            feed = listen(follower)
            async with running(follower):
                await follower.synced.wait()
                for name in ("first", "second", "third"):
                    proxy.refuse()
                    body = builders.config_map(name)
                    body["metadata"]["labels"] = {"cut": "yes"}
                    await api.create(config_maps, body)
                    assert feed.empty()
                    proxy.refuse(False)
                    assert await feed.get() == ("ADDED", name)
                    assert feed.empty()
                proxy.refuse()
                await waiting.until(lambda: follower.age_seconds > 0.0)


async def test_one_successful_call_ends_the_pauses_of_all_informers(
    api_server: access.Access, config_maps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informer, "FIRST_PAUSE_SECONDS", 100.0)
    monkeypatch.setattr(informer, "MAX_PAUSE_SECONDS", 100.0)
    monkeypatch.setattr(informer, "MIN_PAUSE_FRACTION", 0.001)
    async with tcp_proxy.before(api_server.server) as proxy:
        kubeconfig = tcp_proxy.kubeconfig_through(api_server.kubeconfig, proxy.port, tmp_path / "kubeconfig")
        async with api_client.connect(kubeconfig) as api:
            quiet = [informer.Informer(api, config_maps, label_selector=f"quiet={number}") for number in range(3)]
            async with contextlib.AsyncExitStack() as stack:
                for follower in quiet:
                    await stack.enter_async_context(running(follower))
                    await follower.synced.wait()
                proxy.refuse()
                await waiting.until(lambda: all(follower.problem for follower in quiet))
                with pytest.raises(api_errors.Unavailable):
                    await api.get(config_maps)
                proxy.refuse(False)
                await asyncio.sleep(1.0)
                assert not any(follower.is_watching for follower in quiet)
                await api.get(config_maps)
                await waiting.until(lambda: all(follower.is_watching for follower in quiet))


async def test_an_expired_watch_lists_again_and_reports_the_difference(
    api: api_client.ApiClient, widgets: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def widget(name: str) -> dict[str, Any]:
        return {"apiVersion": "test.gpushare.io/v1", "kind": "Widget", "metadata": {"name": name}}

    for name in ("kept", "changed", "deleted", "recreated"):
        await api.create(widgets, widget(name))
    follower = informer.Informer(api, widgets, watch_seconds=1)
    feed = listen(follower)
    assert await follower.step() == 0.0
    assert {feed.get_nowait() for _ in range(4)} == {
        ("ADDED", name) for name in ("kept", "changed", "deleted", "recreated")
    }
    await api.patch(f"{widgets}/changed", {"spec": {"a": 1}})
    await api.delete(f"{widgets}/deleted")
    await api.delete(f"{widgets}/recreated")
    await api.create(widgets, widget("recreated"))
    newest = await api.create(widgets, widget("new"))
    watch = api.watch

    def watch_far_behind(path: str, query: dict[str, str], **options: Any) -> Any:
        is_behind = int(query["resourceVersion"]) < int(newest["metadata"]["resourceVersion"])
        # Version 1 is older than any version the API server keeps.
        return watch(path, {**query, "resourceVersion": "1"} if is_behind else query, **options)

    monkeypatch.setattr(api, "watch", watch_far_behind)
    with caplog.at_level("INFO"):
        assert 0.0 < await follower.step() < informer.FIRST_PAUSE_SECONDS * 2
    assert "too old resource version" in caplog.records[-1].__dict__["err"]
    assert feed.empty()
    assert await follower.step() == 0.0
    changes = [feed.get_nowait() for _ in range(feed.qsize())]
    assert sorted(changes) == [
        ("ADDED", "new"),
        ("ADDED", "recreated"),
        ("DELETED", "deleted"),
        ("DELETED", "recreated"),
        ("MODIFIED", "changed"),
    ]
    assert changes.index(("DELETED", "recreated")) < changes.index(("ADDED", "recreated"))
    assert {key.name for key in follower.objects} == {"kept", "changed", "recreated", "new"}


@pytest.mark.parametrize(
    "answer",
    [
        api_errors.Gone("too old resource version", status=410, reason="Expired"),
        api_errors.Unavailable("storage is (re)initializing", status=429, reason="TooManyRequests"),
    ],
    ids=["410", "429"],
)
async def test_the_pause_is_reset_when_the_api_server_answers_again(
    api: api_client.ApiClient, config_maps: str, monkeypatch: pytest.MonkeyPatch, answer: api_errors.ClusterError
) -> None:
    """After a restart the watch cache is older than the last version seen of a quiet collection, or not ready."""

    def refuse(*_: object, **__: object) -> Any:
        raise api_errors.Unavailable("the API server is restarted")

    def say_gone(*_: object, **__: object) -> Any:
        raise answer

    follower = informer.Informer(api, config_maps, field_selector="metadata.name=quiet", watch_seconds=1)
    assert await follower.step() == 0.0
    with monkeypatch.context() as gone:
        gone.setattr(api, "watch", refuse)
        lost = [await follower.step() for _ in range(20)]
        assert max(lost) > informer.FIRST_PAUSE_SECONDS * 10
        gone.setattr(api, "watch", say_gone)
        assert 0.0 < await follower.step() <= informer.FIRST_PAUSE_SECONDS
        # If every call is answered like this, the pauses grow, even with other failures in between.
        pauses = []
        for number in range(40):
            gone.setattr(api, "watch", refuse if number % 2 else say_gone)
            pauses.append(await follower.step())
        assert max(pauses[-8:]) > informer.FIRST_PAUSE_SECONDS * 10
        assert min(pauses[-8:]) > informer.FIRST_PAUSE_SECONDS
    assert await follower.step() == 0.0


async def test_a_list_from_a_future_version_is_repeated_as_a_consistent_read(
    api: api_client.ApiClient, config_maps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_as_asked = api.list

    async def list_from_never(path: str, query: dict[str, str], *, keep: Keep) -> api_client.ObjectList[Any]:
        if "resourceVersion" in query:
            query = {**query, "resourceVersion": NEVER}
        return await list_as_asked(path, query, keep=keep)

    monkeypatch.setattr(api, "list", list_from_never)
    follower = informer.Informer(api, config_maps, watch_seconds=1)
    assert await follower.step() > 0.0
    assert not follower.synced.is_set()
    assert await follower.step() == 0.0
    assert follower.synced.is_set()


async def test_an_informer_detects_that_etcd_was_restored(
    api: api_client.ApiClient, config_maps: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.create(config_maps, builders.config_map("restored"))
    list_as_it_is = api.list

    async def list_later_state(path: str, query: dict[str, str], *, keep: Keep) -> api_client.ObjectList[Any]:
        def keep_later(item: dict[str, Any]) -> Any:
            item["metadata"]["resourceVersion"] = BEFORE_NEVER
            return keep(item)

        listing = await list_as_it_is(path, query, keep=keep_later)
        return api_client.ObjectList(listing.items, NEVER)

    def refuse(*_: object, **__: object) -> Any:
        raise api_errors.Unavailable("the API server is restarted")

    follower = informer.Informer(api, config_maps, label_selector="!skip", watch_seconds=1)
    # After a restore of etcd the informer remembers a later state than the server has.
    with monkeypatch.context() as before:
        before.setattr(api, "list", list_later_state)
        before.setattr(api, "watch", refuse)
        assert await follower.step() > 0.0
    changes: list[tuple[str, bool]] = []

    def tell(change: object_store.Delta) -> None:
        assert change.new is not None
        changes.append((change.new["metadata"]["resourceVersion"], follower.went_back))

    follower.subscribe(tell)
    changes.clear()
    with caplog.at_level("WARNING"):
        assert await follower.step() > 0.0
        assert "Too large resource version" in caplog.records[-1].__dict__["err"]
        assert await follower.step() == 0.0
    assert "The API server has gone back in time" in caplog.text
    current = (await api.get(f"{config_maps}/restored"))["metadata"]["resourceVersion"]
    assert (current, True) in changes
    changes.clear()
    later = await api.create(config_maps, builders.config_map("later"))
    async with asyncio.timeout(30):
        while not changes:
            assert await follower.step() == 0.0
    assert changes == [(later["metadata"]["resourceVersion"], False)]


async def test_an_informer_backs_off_while_its_kind_does_not_exist(
    api: api_client.ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    follower = informer.Informer(api, "/apis/none.gpushare.io/v1/things")
    pauses = [await follower.step() for _ in range(12)]
    assert all(0.0 < pause <= informer.MAX_PAUSE_SECONDS for pause in pauses)
    assert max(pauses[-4:]) > informer.FIRST_PAUSE_SECONDS
    assert caplog.records[-1].getMessage() == "The API server rejected the request"
    assert not follower.synced.is_set()


async def test_an_error_in_a_subscriber_ends_the_informer(api: api_client.ApiClient, config_maps: str) -> None:
    await api.create(config_maps, builders.config_map("poison"))

    def fail(change: object_store.Delta) -> None:
        raise OSError(change.key.name)

    follower = informer.Informer(api, config_maps, field_selector="metadata.name=poison")
    follower.subscribe(fail)
    with pytest.raises(OSError, match="poison"):
        await asyncio.wait_for(follower.run(), 30)


async def test_an_informer_honours_retry_after() -> None:
    class Busy(api_client.ApiClient):
        def __init__(self) -> None:
            """Make no connection."""

        async def list(self, *_: object, **__: object) -> api_client.ObjectList[Any]:
            raise api_errors.Unavailable("busy", status=429, retry_after_seconds=7.0)

    assert await informer.Informer(Busy(), "/api/v1/pods").step() >= 7.0


async def test_a_long_retry_after_is_capped() -> None:
    class Proxy(api_client.ApiClient):
        def __init__(self) -> None:
            """Make no connection."""

        async def list(self, *_: object, **__: object) -> api_client.ObjectList[Any]:
            raise api_errors.Unavailable("busy", status=503, retry_after_seconds=3600.0)

    assert await informer.Informer(Proxy(), "/api/v1/pods").step() <= informer.MAX_PAUSE_SECONDS


async def test_only_a_403_received_after_rights_are_granted_counts_as_final() -> None:
    class Forbidding(api_client.ApiClient):
        def __init__(self) -> None:
            """Make no connection."""

        async def list(self, *_: object, **__: object) -> api_client.ObjectList[Any]:
            if follower.problem:
                believed.set()  # while the second request is in flight
            raise api_errors.Forbidden("no such right", status=403)

    believed = asyncio.Event()
    must_be_read = informer.Informer(Forbidding(), "/api/v1/pods")
    follower = informer.Informer(Forbidding(), "/api/v1/pods", believe_refusals=believed)
    for _ in range(2):
        await follower.step()
        assert not follower.answered.is_set()
    assert believed.is_set()
    await follower.step()
    assert follower.answered.is_set()
    assert not follower.synced.is_set()
    await must_be_read.step()
    assert not must_be_read.answered.is_set()
