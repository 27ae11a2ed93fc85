from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpushare.cluster import api_client, api_errors, compare_and_swap
from tests.gpushare.cluster import builders

pytestmark = pytest.mark.apiserver


def increment(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "data": {"count": str(int(item["data"]["count"]) + 1)}}


async def counter(api: api_client.ApiClient, config_maps: str, name: str) -> str:
    await api.create(config_maps, builders.config_map(name, count="0"))
    return f"{config_maps}/{name}"


async def count(api: api_client.ApiClient, path: str) -> int:
    return int((await api.get(path))["data"]["count"])


async def test_of_twenty_writers_at_once_none_is_lost(api: api_client.ApiClient, config_maps: str) -> None:
    path = await counter(api, config_maps, "storm")
    stale = await api.get(path)
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(compare_and_swap.update(api, path, increment, attempts=100) for _ in range(10)),
            *(compare_and_swap.update(api, path, increment, attempts=100, cached=stale) for _ in range(10)),
        )
    assert await count(api, path) == 20
    assert stale["data"] == {"count": "0"}


async def test_a_change_that_is_always_too_late_gives_up_after_its_attempts(
    api: api_client.ApiClient, config_maps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await counter(api, config_maps, "late")
    calls = 0

    def slow(item: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        return {**increment(item), "metadata": {**item["metadata"]}}

    replace = api.replace

    async def overtaken(path: str, body: Any) -> dict[str, Any]:
        """Somebody else is always faster, between our read and our write."""
        await api.patch(path, {"metadata": {"annotations": {"by": str(calls)}}})
        return await replace(path, body)

    monkeypatch.setattr(api, "replace", overtaken)
    with pytest.raises(api_errors.Conflict, match="gave up after 4 attempts"):
        await compare_and_swap.update(api, path, slow, attempts=4)
    assert calls == 4
    assert await count(api, path) == 0


async def test_nothing_is_written_when_there_is_nothing_to_do(api: api_client.ApiClient, config_maps: str) -> None:
    path = await counter(api, config_maps, "idle")
    before = await api.get(path)
    assert await compare_and_swap.update(api, path, lambda _: None) == before
    assert await api.get(path) == before


async def test_what_the_change_raises_is_passed_on_and_nothing_is_written(
    api: api_client.ApiClient, config_maps: str
) -> None:
    path = await counter(api, config_maps, "raises")

    def refuse(item: dict[str, Any]) -> dict[str, Any]:
        item["data"]["count"] = "7"
        raise LookupError("no GPU has 8Gi free")

    with pytest.raises(LookupError, match="8Gi"):
        await compare_and_swap.update(api, path, refuse)
    assert await count(api, path) == 0


async def test_a_change_that_drops_the_version_still_cannot_overwrite(
    api: api_client.ApiClient, config_maps: str
) -> None:
    path = await counter(api, config_maps, "careless")
    stale = await api.get(path)
    await compare_and_swap.update(api, path, increment)

    def careless(item: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": item["metadata"]["name"], "namespace": item["metadata"]["namespace"]}
        return {**increment(item), "metadata": metadata}

    await compare_and_swap.update(api, path, careless, cached=stale)
    assert await count(api, path) == 2


async def test_an_object_that_was_made_anew_is_read_anew(api: api_client.ApiClient, config_maps: str) -> None:
    path = await counter(api, config_maps, "anew")
    stale = await api.get(path)
    await api.delete(path)
    await counter(api, config_maps, "anew")
    stored = await compare_and_swap.update(api, path, increment, cached=stale)
    assert stored["data"] == {"count": "1"}
    assert stored["metadata"]["uid"] != stale["metadata"]["uid"]


async def test_an_object_that_is_gone_is_not_found(api: api_client.ApiClient, config_maps: str) -> None:
    path = await counter(api, config_maps, "gone")
    stale = await api.get(path)
    await api.delete(path)
    with pytest.raises((api_errors.NotFound, api_errors.Conflict)):
        await compare_and_swap.update(api, path, increment, cached=stale, attempts=2)
    with pytest.raises(api_errors.NotFound):
        await compare_and_swap.update(api, path, increment)


async def test_a_subresource_is_written_without_touching_the_rest(api: api_client.ApiClient, widgets: str) -> None:
    await api.create(
        widgets, {"apiVersion": "test.gpushare.io/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"x": 1}}
    )
    stored = await compare_and_swap.update(
        api, f"{widgets}/a", lambda item: {**item, "spec": {"x": 2}, "status": {"y": 3}}, subresource="status"
    )
    assert (stored["spec"], stored["status"]) == ({"x": 1}, {"y": 3})


async def test_no_attempts_are_a_mistake(api: api_client.ApiClient, config_maps: str) -> None:
    path = await counter(api, config_maps, "never")
    with pytest.raises(ValueError, match="at least 1"):
        await compare_and_swap.update(api, path, increment, attempts=0)
