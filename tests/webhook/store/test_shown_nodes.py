"""No review waits until the engine has been updated with many nodes: that happens before, in portions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpushare import codec, contract, request
from gpushare.placement import Placement
from gpushare.placement.fleet import Fleet
from tests import builders
from tests.scripted_api import ScriptedApi
from webhook import metrics
from webhook.store import api_store

COUNT = 2 * api_store.NODES_AT_ONCE


def gpunode(name: str, *, version: int = 1) -> dict[str, Any]:
    document = codec.to_document(builders.node(name))
    return {**document, "metadata": {**document["metadata"], "uid": name, "resourceVersion": str(version)}}


@contextlib.asynccontextmanager
async def running(api: ScriptedApi) -> AsyncIterator[api_store.ApiStore]:
    store = api_store.ApiStore(api, metrics.Metrics())
    task = asyncio.create_task(store.run())
    try:
        yield store
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_placement_uses_all_nodes_without_updating_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    update = Fleet.update
    monkeypatch.setattr(
        Fleet, "update", lambda self, view, **more: (shown.append(view.node.name), update(self, view, **more))
    )
    names = [f"node-{number:03}" for number in range(COUNT)]
    api = ScriptedApi(keeps_watches=True)
    api.objects[contract.GPUNODE_PATH] = [gpunode(name) for name in names]
    api.objects[api_store.NODES_PATH] = [builders.node_object(name, uid=name) for name in names]
    pod = builders.pod(request="0.5")
    async with asyncio.timeout(20), running(api) as store:
        while (missing := store.missing()) is not None:
            assert len(set(shown)) < COUNT or "counted" not in missing
            await asyncio.sleep(0)
        await store.synced()
        assert sorted(shown) == names

        shown.clear()
        assert isinstance(store.chooser.place(pod, request.parse(pod), policy="pack"), Placement)
        assert shown == []

        api.tell(contract.GPUNODE_PATH, *({"type": "MODIFIED", "object": gpunode(name, version=2)} for name in names))
        while len(shown) < COUNT:  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0)
        assert isinstance(store.chooser.place(pod, request.parse(pod), policy="pack"), Placement)
        assert len(shown) == COUNT
