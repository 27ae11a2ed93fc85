"""The store on the API server learns from the pods that its copy shows."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from gpushare.cluster import api_client
from gpushare.cluster import object_store as objects
from tests import builders
from webhook import metrics
from webhook.store import occupancy
from webhook.store.api_store import ApiStore


def placed(number: int, **changed: str) -> dict[str, Any]:
    one = builders.pod(f"p{number}", request="0.5", allocation=f"a{number}", node="node-a", **changed)
    one["metadata"] |= {"uid": f"u{number}", "resourceVersion": str(number)}
    one["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    return occupancy.kept(one) or {}


def test_only_of_a_pod_that_was_placed_is_kept_what_it_asks_for() -> None:
    (asked,) = placed(1)["seen"].asks
    assert (asked.request_percent, asked.host.cpu_milli) == (50, 2000)
    unplaced = builders.pod(request="0.5")
    unplaced["spec"]["nodeName"] = "node-a"
    assert (occupancy.kept(unplaced) or {})["seen"].asks == ()


async def test_once_enough_pods_were_placed_placement_learns_what_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = mock.create_autospec(api_client.ApiClient)  # it is not asked anything
    store = ApiStore(nobody, metrics.Metrics())
    learning = asyncio.create_task(store._learn())
    pricing = store._chooser._fleet._scoring
    learned = asyncio.Event()
    learn = pricing.learn
    monkeypatch.setattr(pricing, "learn", lambda *given: (learn(*given), learned.set()))
    for number in range(50):
        key = objects.Key("default", f"p{number}")
        store._occupancy._pod_changed(objects.Delta(objects.ChangeType.ADDED, key, None, placed(number)))
    async with asyncio.timeout(20):
        await learned.wait()
    learning.cancel()
    assert {(asked.request_percent, asked.host.cpu_milli) for asked in pricing._mix.classes} == {(50, 2000)}
