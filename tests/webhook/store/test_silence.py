"""A replica whose watches have stopped becomes unready after a while, but still answers."""

from __future__ import annotations

import asyncio

import pytest

from gpushare import contract
from gpushare.cluster import informer
from gpushare.nodefilters import volumes
from tests.gpushare.cluster.waiting import until
from tests.scripted_api import ScriptedApi
from webhook import metrics
from webhook.store import api_store, occupancy, reservation_limits, shared_profile

PATHS = {
    contract.GPUNODE_PATH,
    api_store.NODES_PATH,
    occupancy.PODS_PATH,
    reservation_limits.QUOTAS_PATH,
    api_store.NAMESPACES_PATH,
    shared_profile.COLLECTION,
    *volumes.PATHS.values(),
}


async def test_stale_watch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "MAX_PAUSE_SECONDS", 0.01)
    now, api = [100.0], ScriptedApi(keeps_watches=True)
    store = api_store.ApiStore(api, metrics.Metrics(), clock=lambda: now[0])
    assert store.silence() is None, "that nothing is known yet is said by another check"
    running = asyncio.create_task(store.run())
    await until(lambda: store.missing() is None)
    api.is_away = True
    api.asked.clear()
    await until(lambda: api.asked == PATHS)
    now[0] += api_store.STALE_SECONDS
    assert store.silence() is None
    now[0] += 1
    said = f"no update from the API server for 301 seconds: GET {contract.GPUNODE_PATH}: upstream is away"
    assert store.silence() == said
    assert store.missing() is None
    api.is_away = False
    await until(lambda: store.silence() is None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
