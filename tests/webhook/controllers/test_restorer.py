"""A placer that the election calls the first checks for open GPUNodes before it opens one without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gpushare import codec, contract
from gpushare.cluster import api_client, events
from tests import builders
from tests.scripted_api import ScriptedApi
from webhook import metrics
from webhook.controllers.restore import Restorer
from webhook.controllers.touched_nodes import TouchedNodes
from webhook.store.api_store import ApiStore

BEGAN = 1000.0
LIFETIME_SECONDS = 60.0


class Api(ScriptedApi):
    """Stands for an API server with GPUNodes; `opened`: names of the GPUNodes that were opened."""

    def __init__(self, *gpunodes: dict[str, Any]) -> None:
        super().__init__(keeps_watches=True)
        self.objects[contract.GPUNODE_PATH] = list(gpunodes)
        self.opened: set[str] = set()

    async def get(self, path: str, query: api_client.Query | None = None) -> dict[str, Any]:
        del query
        listed = {
            f"{contract.GPUNODE_PATH}/{item['metadata']['name']}": item for item in self.objects[contract.GPUNODE_PATH]
        }
        return listed[path]

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        assert body["spec"] == {"allocations": []}
        self.opened.add(path.removeprefix(f"{contract.GPUNODE_PATH}/"))
        return {**body}


def gpunode(name: str, *, is_open: bool) -> dict[str, Any]:
    document = codec.to_document(builders.node(name))
    spec = document["spec"] if is_open else {}
    return {**document, "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": "1"}, "spec": spec}


async def opened_now(*others: dict[str, Any]) -> tuple[set[str], float | None]:
    """Return the GPUNodes that a first placer opens at once, and in how many seconds it checks again."""
    api = Api(gpunode("new", is_open=False), *others)
    store = ApiStore(api, metrics.Metrics(), clock=lambda: BEGAN)
    running = asyncio.create_task(store.run())
    await store.synced()
    restorer = Restorer(
        api,
        store,
        events.Recorder(api, controller="gpushare.io/test", instance="test"),
        metrics.Metrics(),
        touched_nodes=TouchedNodes(),
        lifetime_seconds=LIFETIME_SECONDS,
        is_first=lambda: True,
    )
    look_again = await restorer.reconcile(TouchedNodes().collect([]), now=BEGAN)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return api.opened, None if look_again is None else look_again - BEGAN


async def test_new_gpunode_opens_at_once_if_none_was_ever_open() -> None:
    assert await opened_now() == ({"new"}, None)
    assert await opened_now(gpunode("other", is_open=False)) == ({"new", "other"}, None)


async def test_open_gpunode_proves_an_earlier_placer() -> None:
    assert await opened_now(gpunode("other", is_open=True)) == (set(), LIFETIME_SECONDS)
