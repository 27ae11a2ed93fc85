"""In a burst, changes of one node share a write; a single change is written without delay."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from gpushare import codec, contract, ledger
from gpushare.cluster import api_client
from tests import builders
from webhook import metrics
from webhook.store import gpunode_writer
from webhook.store.api_store import ApiStore


class OneNode(api_client.ApiClient):
    """An API server with one GPUNode that counts its writes. asked: set at the first write. goes_on: until it is set,
    writes are not answered.
    """

    def __init__(self) -> None:
        self.document: dict[str, Any] = codec.to_document(builders.node())
        self.document["metadata"].update(uid="u", resourceVersion="1")
        self.writes = 0
        self.asked, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()

    async def list(self, path: str, *_: Any, keep: Callable[[dict[str, Any]], Any]) -> api_client.ObjectList[Any]:
        items = [keep(copy.deepcopy(self.document))] if path == contract.GPUNODE_PATH else []
        return api_client.ObjectList(items, self.document["metadata"]["resourceVersion"])

    async def replace(self, path: str, body: Mapping[str, Any], **_: Any) -> dict[str, Any]:  # noqa: ARG002
        self.writes += 1
        self.asked.set()
        await self.goes_on.wait()
        self.document = copy.deepcopy(dict(body))
        self.document["metadata"]["resourceVersion"] = str(1 + self.writes)
        return copy.deepcopy(self.document)

    @contextlib.asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async def nothing() -> AsyncIterator[dict[str, Any]]:
            await asyncio.Event().wait()
            yield {}

        yield nothing()


@contextlib.asynccontextmanager
async def running(api: OneNode) -> AsyncIterator[ApiStore]:
    store = ApiStore(api, metrics.Metrics())
    task = asyncio.create_task(store.run())
    try:
        async with asyncio.timeout(20):
            await store.synced()
            yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


async def reserve(store: ApiStore, number: int) -> None:
    entry = builders.allocation(f"a{number}", "GPU-node-a-0", request=1, memory_gib=1)
    await store.commit("node-a", lambda node: ledger.reserve(node, entry))


async def test_change_a_moment_later_shares_the_write() -> None:
    api = OneNode()
    async with running(api) as store:
        first = [asyncio.create_task(reserve(store, number)) for number in range(gpunode_writer.SIBLINGS + 1)]
        await asyncio.sleep(0)  # the write is due
        await asyncio.sleep(0)
        await asyncio.gather(*first, *(reserve(store, 100 + number) for number in range(5)))
    assert api.writes == 1
    assert len(api.document["spec"]["allocations"]) == gpunode_writer.SIBLINGS + 6


async def test_changes_during_a_write_share_the_next_one() -> None:
    api = OneNode()
    api.goes_on.clear()
    async with running(api) as store:
        first = asyncio.create_task(reserve(store, 0))
        await api.asked.wait()
        others = [asyncio.create_task(reserve(store, number)) for number in range(1, 30)]
        await asyncio.sleep(0)  # now all wait
        api.goes_on.set()
        await asyncio.gather(first, *others)
    assert api.writes == 2
    assert len(api.document["spec"]["allocations"]) == 30


async def test_single_change_does_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpunode_writer, "MIN_LINGER_SECONDS", 60.0)
    monkeypatch.setattr(gpunode_writer, "MAX_LINGER_SECONDS", 60.0)
    api = OneNode()
    async with running(api) as store:
        await reserve(store, 1)
        await reserve(store, 2)
    assert api.writes == 2
