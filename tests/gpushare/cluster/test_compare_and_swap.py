from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gpushare.cluster import api_client, api_errors, retrying
from tests.gpushare.cluster import builders

pytestmark = pytest.mark.apiserver


def increment(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "data": {"count": str(int(item["data"]["count"]) + 1)}}


async def counter(api: api_client.ApiClient, config_maps: str, name: str) -> str:
    await api.create(config_maps, builders.config_map(name, count="0"))
    return f"{config_maps}/{name}"


async def count(api: api_client.ApiClient, path: str) -> int:
    return int((await api.get(path))["data"]["count"])


def change_before_write(
    monkeypatch: pytest.MonkeyPatch, api: api_client.ApiClient, faster: Callable[[], Awaitable[object]], *, times: int
) -> None:
    """Have another writer change the object between our read and our write, the given number of times."""
    replace, left = api.replace, iter(range(times))

    async def late(path: str, body: Any) -> dict[str, Any]:
        if next(left, None) is not None:
            await faster()
        return await replace(path, body)

    monkeypatch.setattr(api, "replace", late)


async def test_twenty_concurrent_writers_lose_no_update(
    api: api_client.ApiClient, config_maps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "ATTEMPTS", 100)
    path = await counter(api, config_maps, "storm")
    async with asyncio.timeout(60):
        await asyncio.gather(*(retrying.compare_and_swap(api, path, increment) for _ in range(20)))
    assert await count(api, path) == 20


async def test_a_change_that_always_conflicts_fails_after_its_attempts(
    api: api_client.ApiClient, config_maps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await counter(api, config_maps, "late")
    calls = 0

    def slow(item: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        return {**increment(item), "metadata": {**item["metadata"]}}

    monkeypatch.setattr(retrying, "ATTEMPTS", 4)
    change_before_write(monkeypatch, api, lambda: api.patch(path, {"data": {"at": str(calls)}}), times=4)
    with pytest.raises(api_errors.Conflict, match="gave up after 4 attempts"):
        await retrying.compare_and_swap(api, path, slow)
    assert calls == 4
    assert await count(api, path) == 0


async def test_an_unchanged_object_is_not_written(api: api_client.ApiClient, config_maps: str) -> None:
    path = await counter(api, config_maps, "idle")
    before = await api.get(path)
    assert await retrying.compare_and_swap(api, path, lambda _: None) == before
    assert await api.get(path) == before


async def test_an_error_in_the_change_is_raised_and_nothing_is_written(
    api: api_client.ApiClient, config_maps: str
) -> None:
    path = await counter(api, config_maps, "raises")

    def refuse(item: dict[str, Any]) -> dict[str, Any]:
        item["data"]["count"] = "7"
        raise LookupError("no GPU has 8Gi free")

    with pytest.raises(LookupError, match="8Gi"):
        await retrying.compare_and_swap(api, path, refuse)
    assert await count(api, path) == 0


async def test_a_change_without_resource_version_cannot_overwrite(
    api: api_client.ApiClient, config_maps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await counter(api, config_maps, "careless")

    def careless(item: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": item["metadata"]["name"], "namespace": item["metadata"]["namespace"]}
        return {**increment(item), "metadata": metadata}

    change_before_write(monkeypatch, api, lambda: api.patch(path, {"data": {"count": "1"}}), times=1)
    await retrying.compare_and_swap(api, path, careless)
    assert await count(api, path) == 2


async def test_an_object_that_was_recreated_is_read_again(
    api: api_client.ApiClient, config_maps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await counter(api, config_maps, "recreated")
    first = await api.get(path)

    async def recreate() -> None:
        await api.delete(path)
        await counter(api, config_maps, "recreated")

    change_before_write(monkeypatch, api, recreate, times=1)
    stored = await retrying.compare_and_swap(api, path, increment)
    assert stored["data"] == {"count": "1"}
    assert stored["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_deleted_object_raises_not_found(
    api: api_client.ApiClient, config_maps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await counter(api, config_maps, "gone")
    change_before_write(monkeypatch, api, lambda: api.delete(path), times=1)
    with pytest.raises(api_errors.NotFound):
        await retrying.compare_and_swap(api, path, increment)
