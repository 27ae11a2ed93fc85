"""The store on the API server learns the mix from its cache of pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gpushare import codec, contract
from gpushare.cluster import api_client, api_errors
from tests import builders
from tests.gpushare.cluster.waiting import until
from tests.scripted_api import Json, ScriptedApi
from webhook import metrics
from webhook.store import occupancy, shared_profile
from webhook.store.api_store import ApiStore


def placed(number: int) -> dict[str, Any]:
    made = builders.pod(f"p{number}", request="0.5", allocation=f"a{number}", node="node-a")
    made["metadata"] |= {"uid": f"u{number}", "resourceVersion": str(number)}
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    return made


def test_only_placed_pods_count_in_the_mix() -> None:
    (asked,) = (occupancy.trim_pod(placed(1)) or {})["seen"].asks
    assert (asked.request_percent, asked.host.cpu_milli) == (50, 2000)
    unplaced = builders.pod(request="0.5")
    unplaced["spec"]["nodeName"] = "node-a"
    assert (occupancy.trim_pod(unplaced) or {})["seen"].asks == ()


async def test_placement_learns_the_mix_once_enough_pods_are_placed() -> None:
    api = ScriptedApi(keeps_watches=True)
    node = codec.to_document(builders.node("node-a"))
    api.objects[contract.GPUNODE_PATH] = [{**node, "metadata": {"name": "node-a", "uid": "u", "resourceVersion": "1"}}]
    store = ApiStore(api, metrics.Metrics())
    running = asyncio.create_task(store.run())
    await store.synced()
    assert store.chooser.mix.pods == 0
    for number in range(50):
        api.tell(occupancy.PODS_PATH, {"type": "ADDED", "object": placed(number)})
    await until(lambda: store.chooser.mix.pods > 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert {(asked.request_percent, asked.host.cpu_milli) for asked in store.chooser.mix.classes} == {(50, 2000)}


class BusyApi(ScriptedApi):
    """Answers every read of the ConfigMaps with 429."""

    async def list(
        self, path: str, query: api_client.Query | None = None, *, keep: Callable[[Json], api_client.Kept]
    ) -> api_client.ObjectList[api_client.Kept]:
        if path == shared_profile.COLLECTION:
            raise api_errors.Unavailable("too many requests", status=429, reason="TooManyRequests")
        return await super().list(path, query, keep=keep)


async def test_a_replica_that_cannot_read_the_profile_says_so_and_then_uses_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_profile, "READ_SECONDS", 0.3)
    store = ApiStore(BusyApi(keeps_watches=True), metrics.Metrics())
    store.lead(True)
    running = asyncio.create_task(store.run())
    await until(lambda: store.missing() == "the placement profile has not been read yet: too many requests")
    await store.synced()
    assert store.missing() is None
    running.cancel()
    # BusyApi fails at any write, so none was tried.
    (ended,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)
