"""Very long lists: the memory they use, the event loop's responsiveness, and responses that break off."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from aiohttp import web

from gpushare import object_parsers
from gpushare.cluster import api_client, api_connection, api_errors, informer, transport

PATH: Final = "/api/v1/pods"
LISTED: Final = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":['
FILLING: Final = {f"key-{number}": "x" * 20 for number in range(100)}


def pod(number: int) -> bytes:
    metadata = {"name": f"p{number}", "namespace": "a", "uid": str(number), "resourceVersion": "5"}
    return json.dumps({"metadata": metadata, "spec": FILLING}).encode()


class Server:
    """A server that lists `count` pods: unpaged if the request names a version. It breaks off the first `breaks`
    responses.
    """

    def __init__(self, count: int, *, breaks: int = 0) -> None:
        self.asked: list[dict[str, str]] = []
        self._count = count
        self._breaks = breaks

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.asked.append(query)
        if "watch" in query:
            return web.Response()
        first, end, more = int(query.get("continue", "0")), self._count, ""
        if "resourceVersion" not in query and (rest := first + int(query["limit"])) < end:
            end, more = rest, f'"continue":"{rest}",'
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        await answer.write(LISTED.replace(b'"resourceV', f'{more}"resourceV'.encode()))
        for number in range(first, end):
            if self._breaks and number == self._count // 2:
                self._breaks -= 1
                assert request.transport is not None
                request.transport.abort()
                return answer
            await answer.write(b"," * (number > first) + pod(number))
        await answer.write(b"]}\n")
        return answer


@contextlib.asynccontextmanager
async def serving(server: Server) -> AsyncIterator[api_client.ApiClient]:
    made = web.Application()
    made.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(made)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = api_connection.Credentials(server=f"http://127.0.0.1:{runner.addresses[0][1]}")

    async def source() -> api_connection.Credentials:
        return access

    opened = transport.Transport(api_connection.ApiConnection(source, access), user_agent="test")
    try:
        yield api_client.ApiClient(opened)
    finally:
        await opened.close()
        await runner.cleanup()


def name(item: dict[str, Any]) -> str:
    return str(item["metadata"]["name"])


def nothing(item: dict[str, Any]) -> None:
    assert item["kind"] == "Pod"


async def peak_bytes(count: int) -> int:
    async with serving(Server(count)) as api:
        await api.get("/warm", {"resourceVersion": "0"})
        gc.collect()
        tracemalloc.start()
        try:
            listing = await api.list(PATH, {"resourceVersion": "0"}, keep=nothing)
            assert len(listing.items) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.slow
async def test_a_list_uses_no_memory_for_discarded_items() -> None:
    few, many = await peak_bytes(150), await peak_bytes(1500)
    assert many < 2 * few
    assert many < 1500 * len(pod(1)) / 4


async def test_reading_a_list_does_not_block_the_event_loop() -> None:
    count = 500
    async with serving(Server(count)) as api:
        most, taken = 0, 0

        def keep(item: dict[str, Any]) -> None:
            nonlocal taken
            taken += 1

        async def others() -> None:
            nonlocal most, taken
            while True:
                most, taken = max(most, taken), 0
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await api.list(PATH, {"resourceVersion": "0"}, keep=keep)
        task.cancel()
    assert 0 < most <= 2 * object_parsers.PORTION_BYTES / len(pod(1)) + 1


async def test_notifying_subscribers_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "PORTION_SECONDS", 0.0)
    async with serving(Server(200)) as api:
        follower = informer.Informer(api, PATH)
        most, told = 0, 0

        def tell(_: object) -> None:
            nonlocal told
            told += 1

        async def others() -> None:
            nonlocal most, told
            while True:
                most, told = max(most, told), 0
                await asyncio.sleep(0)

        follower.subscribe(tell)
        task = asyncio.create_task(others())
        await follower.step()
        task.cancel()
    assert len(follower.objects) == 200
    assert most == 1


async def test_a_broken_unpaged_list_is_repeated_in_pages() -> None:
    server = Server(1200, breaks=1)
    async with serving(server) as api:
        listing = await api.list(PATH, {"resourceVersion": "0", "resourceVersionMatch": "NotOlderThan"}, keep=name)
    assert listing.items == [f"p{number}" for number in range(1200)]
    assert listing.resource_version == "7"
    assert [query.get("resourceVersion") for query in server.asked] == ["0", None, None, None]
    assert [query.get("continue") for query in server.asked] == [None, None, "500", "1000"]


async def test_a_broken_page_is_read_again_and_no_item_twice() -> None:
    server = Server(1200, breaks=1)
    async with serving(server) as api:
        listing = await api.list(PATH, keep=name)
    assert listing.items == [f"p{number}" for number in range(1200)]
    assert [query.get("continue") for query in server.asked] == [None, "500", "500", "1000"]


async def test_a_list_that_keeps_breaking_raises_unavailable() -> None:
    server = Server(10, breaks=9)
    async with serving(server) as api:
        with pytest.raises(api_errors.Unavailable, match=f"GET {PATH}: "):
            await api.list(PATH, keep=name)
    assert len(server.asked) == api_client.GET_TRIES


async def test_watch_timeouts_are_randomized() -> None:
    server = Server(0)
    async with serving(server) as api:
        for _ in range(40):
            async with api.watch(PATH) as events:
                assert [event async for event in events] == []
    seconds = {int(query["timeoutSeconds"]) for query in server.asked}
    assert len(seconds) > 10
    assert min(seconds) >= 290
    assert max(seconds) <= 580


async def test_an_error_in_keep_is_not_mistaken_for_a_network_error() -> None:
    def fail(item: dict[str, Any]) -> None:
        raise ValueError(name(item))

    async with serving(Server(3)) as api:
        with pytest.raises(ValueError, match="p0"):
            await api.list(PATH, keep=fail)
